# stickyroute alone, in a venv of its own, run by a user without rights.
#   docker build -t stickyroute .
#   docker run -p 8080:8080 stickyroute serve --backend http://10.0.0.11:8000 --backend http://10.0.0.12:8000

FROM python:3.11-slim AS build
WORKDIR /src
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && python -m venv /opt/stickyroute
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY stickyroute ./stickyroute
# The hot modules are compiled (hatch_build.py), which takes some minutes and halves the CPU a request.
RUN HATCH_BUILD_HOOK_ENABLE_CUSTOM=1 /opt/stickyroute/bin/pip install --no-cache-dir --disable-pip-version-check '.[dns,events,kubernetes]'

FROM python:3.11-slim
COPY --from=build /opt/stickyroute /opt/stickyroute
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin stickyroute
USER 10001
ENV PATH=/opt/stickyroute/bin:$PATH PYTHONUNBUFFERED=1
# 8080: the public port. 9090: the admin port, on the container's loopback unless admin_listen opens it.
EXPOSE 8080 9090
STOPSIGNAL SIGTERM
ENTRYPOINT ["stickyroute"]
CMD ["serve", "--config", "/etc/stickyroute/stickyroute.yaml"]
