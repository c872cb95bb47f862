package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
)

// report is one line that the bank or a worker writes to its standard output for
// the demo to read.
type report struct {
	// From is the sender's name.
	From string `json:"from"`
	// Kind is one of those below; empty for what is only told.
	Kind string `json:"kind,omitempty"`
	// Text is what a person is told, if anything.
	Text string `json:"text,omitempty"`
	// Address is set with kind listening.
	Address string `json:"address,omitempty"`
	// Run is set with kind holding.
	Run string `json:"run,omitempty"`
	// Key is an effect's idempotency key, set with the kinds held and waiting.
	Key string `json:"key,omitempty"`
	// Attempt is set with kind tried.
	Attempt *attempt `json:"attempt,omitempty"`
}

// The kinds of reports that the demo waits for.
const (
	listening = "listening" // the server or the bank can be called
	holding   = "holding"   // a worker was granted the lease
	held      = "held"      // the bank has applied an operation and holds its reply
	waiting   = "waiting"   // a worker has an effect on file and waits to be told to act
	renewed   = "renewed"   // a worker's heartbeat was answered
	tried     = "tried"     // a fenced worker tried a write
	ended     = "ended"     // a process is gone; the demo itself says so
)

// attempt is a write that a fenced worker tried.
type attempt struct {
	Call    string `json:"call"`
	Refused bool   `json:"refused"`
	// Reason is that of the refusal's ErrorInfo, or the error in words.
	Reason string `json:"reason,omitempty"`
	// Presented and Current are the tokens that the refusal names.
	Presented string `json:"presented,omitempty"`
	Current   string `json:"current,omitempty"`
}

// sender is the name of this process among the cast.
var sender string

// tell writes a report. It fails only when nobody reads any more, and then the
// end of the standard input has ended this process already, or will.
func tell(r report) {
	r.From = sender
	_ = send(os.Stdout, r)
}

// send writes a report as one line in one call: lines of many processes on one
// pipe stay whole.
func send(out io.Writer, r report) error {
	_, err := out.Write([]byte(encode(r) + "\n"))
	return err
}

func say(format string, args ...any) { tell(report{Text: fmt.Sprintf(format, args...)}) }

// commands returns the lines of the standard input. Its end means that the demo is
// gone, however it went, and ends this process too.
func commands() <-chan string {
	lines := make(chan string, 1) // so that a line nobody waits for does not hide the end
	go func() {
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			lines <- in.Text()
		}
		os.Exit(exitOrphaned)
	}()
	return lines
}

// The exit statuses of the bank and the workers.
const (
	exitDone     = 0
	exitFailed   = 1
	exitFenced   = 3 // a worker was told that it is fenced, and stopped
	exitOrphaned = 4 // the demo is gone
)
