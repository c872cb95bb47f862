// Command gcloud does in an image of the tests what Google's does with the one command
// that starts the emulator of Bigtable.
package main

import (
	"fmt"
	"os"
	"strings"
	"syscall"
)

func main() {
	const begin = "beta emulators bigtable start --host-port="
	address, ok := strings.CutPrefix(strings.Join(os.Args[1:], " "), begin)
	if !ok {
		fmt.Fprintf(os.Stderr, "got %q, want %s…\n", os.Args[1:], begin)
		os.Exit(2)
	}
	fmt.Fprintln(os.Stderr, syscall.Exec("/cbtemulator", []string{"cbtemulator", "-address", address}, os.Environ()))
	os.Exit(1)
}
