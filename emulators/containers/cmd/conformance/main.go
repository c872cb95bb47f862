// Command conformance runs the conformance suite on Postgres in a container:
//
//	go -C emulators/containers run ./cmd/conformance --format json
//
// It is the command "tapestore conformance" for the engine that this module starts;
// the exit status is 1 when a case failed.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"regexp"
	"syscall"

	tclog "github.com/testcontainers/testcontainers-go/log"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/conformance/engines"
	"github.com/tapestore/tapestore/emulators"
	_ "github.com/tapestore/tapestore/emulators/containers"
)

func main() {
	conformance.RunChild() // before anything is started that the child does not need
	format := flag.String("format", "text", "text or json")
	pattern := flag.String("run", "", "run only the cases whose guarantee/name matches this regular expression")
	flag.Parse()
	if err := run(*format, *pattern); err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

func run(format, pattern string) (err error) {
	show, ok := map[string]func(conformance.Report) error{"text": text, "json": asJSON}[format]
	if !ok || flag.NArg() > 0 {
		return fmt.Errorf("--format is text or json, and there are no arguments; got %q %q", format, flag.Args())
	}
	cases, err := regexp.Compile(pattern)
	if err != nil {
		return fmt.Errorf("--run is no regular expression: %w", err)
	}
	tclog.SetDefault(log.New(io.Discard, "", 0))
	if err := os.Setenv("EMULATORS_POSTGRES", emulators.TierContainer); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	server, err := emulators.Postgres(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	report := conformance.Execute(ctx, engines.Postgres(server, nil), cases)
	if err := ctx.Err(); err != nil {
		return err
	}
	if len(report.Guarantees) == 0 {
		return fmt.Errorf("--run %q matches no case", pattern)
	}
	if err := show(report); err != nil {
		return err
	}
	if report.Summary.Failed > 0 {
		return errors.New("the store does not keep the contract")
	}
	return nil
}

func asJSON(r conformance.Report) error {
	enc := json.NewEncoder(os.Stdout)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(r)
}

func text(r conformance.Report) error {
	fmt.Printf("%s %s (%s)\n", r.Engine, r.Version, r.Tier)
	for _, g := range r.Guarantees {
		for _, c := range g.Cases {
			fmt.Printf("%-14s %s/%s %d ms %s\n", c.Status, g.ID, c.Name, c.MS, c.Reason)
		}
	}
	_, err := fmt.Printf("%d passed, %d failed, %d not applicable\n", r.Summary.Passed, r.Summary.Failed, r.Summary.NotApplicable)
	return err
}
