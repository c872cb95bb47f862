// Command tapestore is cmd/tapestore of the module above, and can also start engines in containers:
//
//	EMULATORS=container go -C containers run ./cmd/tapestore conformance --engine postgres
package main

import (
	"io"
	"log"

	tclog "github.com/testcontainers/testcontainers-go/log"

	_ "github.com/tapestore/tapestore/containers" // starts engines in containers
	"github.com/tapestore/tapestore/internal/command"
)

func main() {
	tclog.SetDefault(log.New(io.Discard, "", 0)) // errors already have what matters of the log
	command.Main()
}
