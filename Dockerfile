# Lockward in an official image: redis:7.4-bookworm, or another of Redis 7.0 or later or of Valkey, on Debian 12 or later:
# docker build --build-arg SERVER=valkey/valkey:8.1-bookworm .
ARG SERVER=redis:7.4-bookworm

FROM rust:1.89-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends libclang-dev
WORKDIR /src
COPY . .
RUN cargo build --release --locked -p lockward
RUN strip --strip-unneeded target/release/liblockward.so

FROM $SERVER
COPY --from=build /src/target/release/liblockward.so /usr/lib/redis/modules/liblockward.so
# The entrypoint of these images puts the server's name before arguments that begin with a hyphen.
CMD ["--loadmodule", "/usr/lib/redis/modules/liblockward.so"]
