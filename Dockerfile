# The agent of a directory of apcore modules: mount or copy it to /extensions.
FROM python:3.13-slim AS build
COPY pyproject.toml README.md LICENSE /source/
COPY src /source/src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /source
RUN python -m venv --without-pip /agent \
    && pip --python /agent/bin/python install --no-cache-dir "apcore-a2a[postgres] @ file://$(echo /wheels/*.whl)"

FROM python:3.13-slim
# By number: Kubernetes sees that it is not root, and a volume can be given to it.
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin agent && mkdir /data && chown agent:agent /data
COPY --from=build /agent /agent
COPY examples/extensions /extensions
USER 10001:10001
ENV PATH=/agent/bin:$PATH EXTENSIONS_DIR=/extensions APCORE_A2A_STORE=sqlite:////data/tasks.db APCORE_A2A_LOG_FORMAT=json
VOLUME /data
EXPOSE 8000
# Whether it lives, not whether its database does: Swarm replaces what is unhealthy.
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s CMD ["python", "-c", "import os, urllib.request; urllib.request.urlopen('http://127.0.0.1:' + os.environ.get('PORT', '8000') + '/health/live', timeout=2)"]
CMD ["apcore-a2a", "serve"]
