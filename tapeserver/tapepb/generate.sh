#!/bin/sh
# Generates tape.pb.go and tape_grpc.pb.go from tape.proto. It needs Go only; the
# generators are pinned by the tools module.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../../tools"
exec go run ./protogen "$here" tape.proto
