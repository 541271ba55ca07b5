# The image for NVIDIA GPUs: NVIDIA's NeMo image and, beside it, the suite's own environment. ./shell/build.sh builds it.
#
# PyTorch, numpy, TransformerEngine and Megatron-Bridge are those of NVIDIA's image; none of them is replaced.
ARG BASE_IMAGE=nvcr.io/nvidia/nemo:26.08
FROM ${BASE_IMAGE}

# Any user may run the image: HOME is writable for all, and the environment is readable for all.
ENV HOME=/workspace/home \
    USER=tprimat \
    TPRIMAT_VENV=/opt/tprimat/venv
RUN mkdir -p /workspace/code /workspace/home && chmod 1777 /workspace/home
WORKDIR /workspace/code

# Only the files that determine the environment, so that other changes in the checkout do not rebuild it.
COPY --chmod=0755 cpu-requirements.txt energy-requirements.txt nvd-requirements.txt titan-requirements.txt ./
COPY --chmod=0755 shell/platform.sh shell/setup.sh shell/
COPY --chmod=0755 utils/secret_forms.txt utils/
COPY --chmod=0755 shell/lib/environment.sh shell/lib/install.sh shell/lib/torch_source.py shell/lib/
COPY --chmod=0755 shell/inside/setup_image.sh shell/inside/setup_framework.sh shell/inside/
# pip's settings and the proxies of the building machine are mounted for this step only and are not stored in the image.
RUN --mount=type=secret,id=settings,target=/run/tprimat/settings \
    --mount=type=secret,id=pip_global,target=/run/tprimat/global/pip/pip.conf \
    --mount=type=secret,id=pip_user,target=/run/tprimat/user/pip/pip.conf \
    --mount=type=secret,id=pip_cert,target=/run/tprimat/cert.pem \
    --mount=type=cache,target=/var/cache/tprimat-pip \
    HOME=/tmp PIP_CACHE_DIR=/var/cache/tprimat-pip PLATFORM=nvd ./shell/inside/setup_image.sh

COPY --chmod=0755 . ./
ENV TPRIMAT_IN_CONTAINER=1
RUN PLATFORM=nvd ./shell/inside/setup_image.sh probe
# The entry point of a base image prints a banner to stdout, where the output of our scripts belongs.
ENTRYPOINT []
CMD ["bash"]
ARG BASE_IMAGE
ARG BASE_DIGEST=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="tprimat:nvd" \
    org.opencontainers.image.revision="${REVISION}" \
    org.opencontainers.image.base.name="${BASE_IMAGE}" \
    org.opencontainers.image.base.digest="${BASE_DIGEST}"
