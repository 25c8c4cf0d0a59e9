# kneematch with its model.
#   docker build -t kneematch .                                    for CPUs
#   docker build -t kneematch:cuda --build-arg TORCH=cu130 .       for NVIDIA graphics cards
# TORCH names a file of requirements/, which has the hash of every package.

FROM python:3.11-slim-bookworm AS build
ARG TORCH=cpu
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY requirements requirements
COPY src src
RUN python -m venv /opt/kneematch && \
    /opt/kneematch/bin/pip install --no-cache-dir --require-hashes --no-deps \
      --extra-index-url "https://download.pytorch.org/whl/$TORCH" \
      -r requirements/common.txt -r "requirements/$TORCH.txt" && \
    /opt/kneematch/bin/pip install --no-cache-dir --no-deps --no-build-isolation .

FROM python:3.11-slim-bookworm
COPY --from=build /opt/kneematch /opt/kneematch
# Everything that is written besides results goes to /tmp, so that the root may be read-only.
ENV PATH=/opt/kneematch/bin:$PATH \
    HOME=/tmp \
    XDG_CACHE_HOME=/tmp/cache \
    PYTHONDONTWRITEBYTECODE=1
RUN useradd --uid 1000 --no-create-home kneematch
USER 1000
WORKDIR /data
ENTRYPOINT ["kneematch"]
CMD ["--help"]
