# Outrider on CPUs. From the repository's root:
#   docker build -f docker/cpu.Dockerfile -t outrider .
#   docker run --rm --stop-timeout 45 -p 127.0.0.1:50051:50051 -v DIR:/model:ro outrider \
#     --ranks 2 -- serve --model /model --address 0.0.0.0 --insecure
# docker/check carries out this file without a container engine.
ARG DEBIAN=bookworm-20250520-slim

FROM debian:${DEBIAN} AS build
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
WORKDIR /src
COPY launcher/setup.sh launcher/
COPY docker/stages.sh docker/packages.txt docker/
RUN source docker/stages.sh && install_pinned
COPY . .
RUN source docker/stages.sh && build_program cpu

FROM debian:${DEBIAN}
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
WORKDIR /usr/local/share/outrider
COPY launcher/setup.sh launcher/
COPY docker/stages.sh docker/packages.txt docker/
RUN source docker/stages.sh && install_runtime_packages && \
    useradd --system --create-home --uid 10001 outrider
# Drafts of known models.
COPY models /usr/local/share/outrider/models
ENV OUTRIDER_DEFAULT_DRAFTS=/usr/local/share/outrider/models
COPY --from=build /src/build/cpu/bin/outrider /usr/local/bin/
RUN outrider version
USER outrider
WORKDIR /home/outrider
EXPOSE 50051
# Over TLS it needs OUTRIDER_TLS_CA, and a certificate for 127.0.0.1.
HEALTHCHECK --interval=10s --timeout=6s --start-period=300s --retries=3 CMD ["outrider", "health"]
ENTRYPOINT ["outrider", "launch"]
CMD ["--help"]
