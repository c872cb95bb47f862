// Command tapestore is cmd/tapestore of the module above, whose benchmark also measures Temporal's
// persistence layer, beside the store on PostgreSQL:
//
//	go -C bench/peers/temporal run ./cmd/tapestore bench cas pause --engine postgres
package main

import (
	_ "github.com/tapestore/tapestore/bench/peers/temporal" // adds the peer
	"github.com/tapestore/tapestore/internal/command"
)

func main() { command.Main() }
