// Sets the equations of a page as MathML, with the copy of Temml beside this file: nothing is fetched from elsewhere.
for (const place of document.querySelectorAll(".arithmatex")) {
  const text = place.textContent.trim().slice(2, -2); // without \( \) or \[ \]
  const block = place.tagName === "DIV";
  temml.render(block || place.closest("td") ? `\\displaystyle ${text}` : text, place, { displayMode: block });
}
