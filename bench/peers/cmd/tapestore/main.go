// Command tapestore is cmd/tapestore of the module above, whose benchmark also measures other
// lease libraries, beside the store on PostgreSQL:
//
//	go -C bench/peers run ./cmd/tapestore bench --all
package main

import (
	_ "github.com/tapestore/tapestore/bench/peers" // adds the peers
	"github.com/tapestore/tapestore/internal/command"
)

func main() { command.Main() }
