# The same image as "make image" builds, for those who have a container engine:
#
#   docker build --build-arg VERSION="$(git describe --tags --always)" \
#     --build-arg REVISION="$(git rev-parse HEAD)" -t azure-kms-plugin .
#
# Both bases are named by tag. A digest would be better, but one can only be
# pinned by someone who can reach the registries and check it; "make image"
# needs no base and is the reproducible one.
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
ARG VERSION=dev
ARG REVISION
ARG TARGETOS
ARG TARGETARCH
WORKDIR /src
COPY . .
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH \
    go build -tags grpcnotrace -trimpath -buildvcs=false -ldflags "-s -w -X main.version=$VERSION -X main.revision=$REVISION" \
    -o /azure-kms-plugin ./cmd/azure-kms-plugin

FROM gcr.io/distroless/static-debian12:nonroot
COPY --from=build /azure-kms-plugin /azure-kms-plugin
USER 65532:65532
ENTRYPOINT ["/azure-kms-plugin"]
