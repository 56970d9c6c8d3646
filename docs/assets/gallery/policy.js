// A policy as an ONNX file that `palaestra export` wrote, run by onnxruntime-web beside this file.
import * as ort from "./ort/ort.wasm.min.mjs";

ort.env.wasm.wasmPaths = new URL("./ort/", import.meta.url).href;
ort.env.wasm.numThreads = 1; // networks this small are slower with more

const ARRAYS = { float32: Float32Array, float64: Float64Array, bool: Uint8Array, uint8: Uint8Array, int8: Int8Array };

// The tensor of one row; missing numbers are zeros, as a memory is at first.
function tensor({ dtype, shape }, values) {
  const dims = shape.map((size) => (typeof size === "number" ? size : 1));
  const size = dims.reduce((product, one) => product * one, 1);
  const data = new ARRAYS[dtype](size);
  if (values) data.set(values);
  return new ort.Tensor(dtype, data, dims);
}

export async function loadPolicy(inputs, address) {
  const session = await ort.InferenceSession.create(address, { executionProviders: ["wasm"] });
  let memory = {}, first = true;
  return {
    begin() {
      [memory, first] = [{}, true];
    },
    // The most probable or most valuable action: a number of a choice, or a list of numbers.
    async act(observation) {
      const feeds = {};
      for (const input of inputs) {
        const { name } = input;
        if (name === "first") feeds[name] = tensor(input, [first ? 1 : 0]);
        else if (name.startsWith("state")) feeds[name] = memory[name] ?? tensor(input);
        else feeds[name] = tensor(input, observation[name === "observation" ? name : name.slice("observation.".length)]);
      }
      const outputs = await session.run(feeds);
      for (const [name, value] of Object.entries(outputs))
        if (name.startsWith("next.")) memory[name.slice("next.".length)] = value;
      first = false;
      const { type, data } = outputs.action;
      return type.startsWith("int") ? Number(data[0]) : Array.from(data);
    },
  };
}
