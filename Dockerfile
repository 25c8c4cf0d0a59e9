# kneematch with its model.
#   docker build -t kneematch .                                    for CPUs
#   docker build -t kneematch:cuda --build-arg TORCH=cu130 .       for NVIDIA graphics cards
# TORCH is a PyTorch backend as uv names them: cpu, cu126, cu128, cu130, ...

FROM python:3.11-slim-bookworm AS build
ARG TORCH=cpu
RUN pip install --no-cache-dir uv==0.13.7
WORKDIR /source
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY src src
RUN uv venv --no-cache /opt/kneematch && \
    uv pip install --no-cache --compile-bytecode --python /opt/kneematch --torch-backend "$TORCH" \
      --constraints constraints.txt '.[web]'

FROM python:3.11-slim-bookworm
COPY --from=build /opt/kneematch /opt/kneematch
# Everything that is written besides results goes to /tmp, so that the root may be read-only.
ENV PATH=/opt/kneematch/bin:$PATH \
    HOME=/tmp \
    XDG_CACHE_HOME=/tmp/cache \
    MPLCONFIGDIR=/tmp/matplotlib \
    PYTHONDONTWRITEBYTECODE=1
RUN useradd --uid 1000 --no-create-home kneematch
USER 1000
WORKDIR /data
ENTRYPOINT ["kneematch"]
CMD ["--help"]
