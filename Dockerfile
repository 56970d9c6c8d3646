# The command line in a container, for CPUs; docs/tutorials/container.md says how to use it.
FROM python:3.11-slim AS build
WORKDIR /source
RUN python -m venv /opt/palaestra
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src ./src
COPY examples/single_file ./examples/single_file
RUN /opt/palaestra/bin/pip install --no-cache-dir --disable-pip-version-check -c constraints.txt '.[video,export,serve]'

FROM python:3.11-slim
COPY --from=build /opt/palaestra /opt/palaestra
# Not root: what an environment or a run of others does, it does as a user who owns nothing but its home.
RUN useradd --create-home --uid 10001 learner && install -d -o learner -g learner /home/learner/runs
USER 10001
WORKDIR /home/learner
ENV PATH=/opt/palaestra/bin:$PATH PYTHONUNBUFFERED=1 SDL_VIDEODRIVER=dummy
VOLUME /home/learner/runs
EXPOSE 8000
# SIGTERM, which `docker stop` sends, saves a checkpoint; give it the time: docker stop --timeout 30.
STOPSIGNAL SIGTERM
ENTRYPOINT ["palaestra"]
CMD ["--help"]
