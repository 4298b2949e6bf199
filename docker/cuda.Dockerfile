# Outrider on NVIDIA GPUs. Never built or run with a GPU; the steps that are shared with cpu.Dockerfile are
# those that docker/check carries out.
ARG DEBIAN=bookworm-20250520-slim
ARG CUDA=13.0.1
ARG PRESET=cuda

FROM nvidia/cuda:${CUDA}-devel-ubuntu24.04 AS toolkit
FROM nvidia/cuda:${CUDA}-runtime-ubuntu24.04 AS libraries

FROM debian:${DEBIAN} AS build
ARG PRESET
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
WORKDIR /src
COPY launcher/setup.sh launcher/
COPY docker/stages.sh docker/packages.txt docker/
RUN source docker/stages.sh && install_pinned
COPY --from=toolkit /usr/local/cuda /usr/local/cuda
# NCCL, which is not of the toolkit.
COPY --from=toolkit /usr/include/nccl*.h /usr/local/include/
COPY --from=toolkit /usr/lib/x86_64-linux-gnu/libnccl.so* /usr/local/lib/
ENV PATH=/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
COPY . .
RUN source docker/stages.sh && build_program "$PRESET"
RUN mkdir /out && cp "build/$PRESET/bin/outrider" /out/

FROM debian:${DEBIAN}
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
WORKDIR /usr/local/share/outrider
COPY launcher/setup.sh launcher/
COPY docker/stages.sh docker/packages.txt docker/
RUN source docker/stages.sh && install_runtime_packages && \
    useradd --system --create-home --uid 10001 outrider
COPY --from=libraries /usr/local/cuda /usr/local/cuda
COPY --from=libraries /usr/lib/x86_64-linux-gnu/libnccl.so* /usr/local/lib/
RUN ldconfig
# The container runtime mounts the driver's own libraries where these ask for them.
ENV LD_LIBRARY_PATH=/usr/local/cuda/lib64 NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
# Drafts of known models.
COPY models /usr/local/share/outrider/models
ENV OUTRIDER_DEFAULT_DRAFTS=/usr/local/share/outrider/models
COPY --from=build /out/outrider /usr/local/bin/
RUN outrider version
USER outrider
WORKDIR /home/outrider
EXPOSE 50051
# Over TLS it needs OUTRIDER_TLS_CA, and a certificate for 127.0.0.1.
HEALTHCHECK --interval=10s --timeout=6s --start-period=300s --retries=3 CMD ["outrider", "health"]
ENTRYPOINT ["outrider", "launch"]
CMD ["--help"]
