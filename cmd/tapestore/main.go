// Command tapestore serves, checks and shows the stores of Tape.
package main

import "github.com/tapestore/tapestore/internal/command"

func main() { command.Main() }
