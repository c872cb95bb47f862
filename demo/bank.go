package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"
)

// bank is the counterparty. It answers two paths: POST /operations applies an
// operation, once per idempotency key, and GET /ledger tells what it did.
type bank struct {
	mu      sync.Mutex
	ledger  []*posting // in the order of first calls
	applied int        // operations so far, for their references
	// hold is the ending of the key whose first reply is held back.
	hold string
}

// posting is what the bank did under one idempotency key.
type posting struct {
	Key string
	// Calls is how often it was asked, Applied how often it moved money.
	Calls, Applied int
	// Moved is the sum of what it moved, in cents.
	Moved int64
	Reply receipt
}

// receipt is what the bank answers; the same for every call with one key.
type receipt struct {
	Reference string `json:"reference"`
	Tool      string `json:"tool"`
	Cents     int64  `json:"cents"`
}

const idempotencyKey = "Idempotency-Key"

// runBank serves until the demo closes its standard input.
func runBank(args []string) int {
	b := &bank{}
	sender = "bank"
	flags := flag.NewFlagSet("bank", flag.ContinueOnError)
	flags.StringVar(&b.hold, "hold", "", "hold the first reply to a key with this ending until the caller is gone")
	if flags.Parse(args) != nil {
		return exitFailed
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return exitFailed
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /operations", b.operate)
	mux.HandleFunc("GET /ledger", b.show)
	_ = commands() // for the end of the standard input
	tell(report{Kind: listening, Address: lis.Addr().String()})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	fmt.Fprintln(os.Stderr, server.Serve(lis))
	return exitFailed
}

func (b *bank) operate(w http.ResponseWriter, r *http.Request) {
	var op step
	key := r.Header.Get(idempotencyKey)
	if err := json.NewDecoder(r.Body).Decode(&op); err != nil || key == "" {
		http.Error(w, "want an operation and an idempotency key", http.StatusBadRequest)
		return
	}
	reply, keep := b.apply(key, op)
	if keep {
		tell(report{Kind: held, Key: key, Text: "keeps its reply back"})
		<-r.Context().Done() // the caller is gone
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(reply) // the caller is gone if this fails
}

// apply applies an operation unless it knows the key, and returns the reply and
// whether it is to be held back.
func (b *bank) apply(key string, op step) (reply receipt, keep bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.find(key)
	p.Calls++
	if p.Applied > 0 {
		say("knows the key: moves nothing, answers %s again", p.Reply.Reference)
		return p.Reply, false
	}
	b.applied++
	p.Applied++
	p.Moved += op.Cents
	p.Reply = receipt{Reference: fmt.Sprintf("BANK-%04d", b.applied), Tool: op.Tool, Cents: op.Cents}
	say("applies %s of %s as %s", op.Tool, money(op.Cents), p.Reply.Reference)
	if b.hold != "" && strings.HasSuffix(key, b.hold) {
		b.hold = ""
		return p.Reply, true
	}
	return p.Reply, false
}

func (b *bank) find(key string) *posting {
	for _, p := range b.ledger {
		if p.Key == key {
			return p
		}
	}
	p := &posting{Key: key}
	b.ledger = append(b.ledger, p)
	return p
}

func (b *bank) show(w http.ResponseWriter, _ *http.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(b.ledger)
}

// money writes cents as people read them.
func money(cents int64) string {
	whole := fmt.Sprint(cents / 100)
	for at := len(whole) - 3; at > 0; at -= 3 {
		whole = whole[:at] + "," + whole[at:]
	}
	return fmt.Sprintf("%s.%02d", whole, cents%100)
}
