# The image for AMD GPUs: AMD's Primus image and, beside it, the suite's own environment. ./shell/build.sh builds it.
#
# PyTorch, numpy and TransformerEngine are AMD's, and so is Primus in /workspace/Primus; none of them is replaced.
ARG BASE_IMAGE=docker.io/rocm/primus:v25.11
FROM ${BASE_IMAGE}

# The run scripts name both groups: they own the GPUs' nodes, and a base may lack the second.
RUN for group in video render; do getent group "$group" >/dev/null || groupadd --system "$group"; done

# Any user may run the image: HOME is open to all, and the environment is readable to all.
ENV HOME=/workspace/home \
    USER=tprimat \
    PATH=/opt/rocm/bin:$PATH \
    TPRIMAT_VENV=/opt/tprimat/venv
RUN mkdir -p /workspace/code /workspace/home && chmod 1777 /workspace/home
WORKDIR /workspace/code

# Only what decides the environment, so that a change elsewhere in the checkout does not make it anew.
COPY --chmod=0755 cpu-requirements.txt amd-requirements.txt ./
COPY --chmod=0755 shell/platform.sh shell/setup.sh shell/
COPY --chmod=0755 shell/lib/environment.sh shell/lib/install.sh shell/lib/torch_source.py shell/lib/
COPY --chmod=0755 shell/inside/setup_image.sh shell/inside/
# pip's settings and the proxies of the machine that builds are mounted for this one step, and are not in the image.
RUN --mount=type=secret,id=settings,target=/run/tprimat/settings \
    --mount=type=secret,id=pip_global,target=/run/tprimat/global/pip/pip.conf \
    --mount=type=secret,id=pip_user,target=/run/tprimat/user/pip/pip.conf \
    --mount=type=secret,id=pip_cert,target=/run/tprimat/cert.pem \
    --mount=type=cache,target=/var/cache/tprimat-pip \
    HOME=/tmp PIP_CACHE_DIR=/var/cache/tprimat-pip PLATFORM=amd ./shell/inside/setup_image.sh

COPY --chmod=0755 . ./
ENV TPRIMAT_IN_CONTAINER=1
# The entry point of a base image prints a banner where the results of our scripts belong.
ENTRYPOINT []
CMD ["bash"]
ARG BASE_IMAGE
ARG BASE_DIGEST=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="tprimat:amd" \
    org.opencontainers.image.revision="${REVISION}" \
    org.opencontainers.image.base.name="${BASE_IMAGE}" \
    org.opencontainers.image.base.digest="${BASE_DIGEST}"
