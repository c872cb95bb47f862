package tapeconfig_test

import (
	"fmt"

	"github.com/tapestore/tapestore/lease/takeover"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tapeconfig"
)

// A recovery worker whose leases and bounds are in a file.
func Example() {
	config, err := tapeconfig.Parse("tape.yaml", []byte(`
tape:
  reactors:
    recovery:
      lease_ttl_s: 60
      max_in_flight: 16
`))
	if err != nil {
		fmt.Println(err) // every fault, with its line
		return
	}
	recovery := config.Reactor("recovery")
	fmt.Println("renews every", recovery.Heartbeat, "at the latest")

	store := memory.New(nil).Open()
	_, err = takeover.New(store, "worker-1", recovery.Takeover())
	fmt.Println("error:", err)
	// Output:
	// renews every 20s at the latest
	// error: <nil>
}

// All faults are reported at once.
func ExampleParse_faults() {
	_, err := tapeconfig.Parse("tape.yaml", []byte(`
tape:
  reactors:
    agent:
      lease_ttl_s: 30
      heartbeat_s: 29
      max_inflight: 4
`))
	fmt.Println(err)
	// Output:
	// tape.yaml:6: tape.reactors.agent.heartbeat_s: a renewal that starts after 29s and may take 14.5s does not fit into the trusted time of 27s (TTL less margin)
	// tape.yaml:7: tape.reactors.agent.max_inflight: unknown key; did you mean max_in_flight?
}
