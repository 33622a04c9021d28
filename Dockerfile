# The agent of a directory of apcore modules: mount or copy it to /extensions.
FROM python:3.13-slim
RUN useradd --create-home agent && mkdir /data /extensions && chown agent /data
COPY pyproject.toml README.md LICENSE /app/
COPY src /app/src
RUN pip install --no-cache-dir "/app[postgres]"
COPY examples/extensions /extensions
USER agent
ENV EXTENSIONS_DIR=/extensions A2A_STORE=sqlite:////data/tasks.db A2A_LOG_FORMAT=json
VOLUME /data
EXPOSE 8000
HEALTHCHECK CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://localhost:8000/health', timeout=2)"]
CMD ["apcore-a2a", "serve"]
