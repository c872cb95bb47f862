package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"
)

const idempotencyKey = "Idempotency-Key"

// bank is the counterparty. POST /operations applies an operation, once per idempotency key, and
// GET /ledger returns the applied operations.
type bank struct {
	mu     sync.Mutex
	ledger []*posting // in the order of first calls
	// hold is a suffix of a key. The bank withholds the first reply to a matching key until the
	// caller is gone.
	hold string
	// ignoreKeys makes the bank apply every call, like a bank without idempotency keys.
	ignoreKeys bool
}

// posting records the calls under one idempotency key.
type posting struct {
	Key            string
	Calls, Applied int
	Moved          int64 // in cents
}

// step is one operation.
type step struct {
	Tool  string `json:"tool"`
	Cents int64  `json:"cents"`
}

// runBank runs the bank until the demo closes its standard input.
func runBank(args []string) int {
	b := &bank{}
	flags := flag.NewFlagSet("bank", flag.ContinueOnError)
	flags.StringVar(&b.hold, "hold", "", "hold the first reply to a key with this ending until the caller is gone")
	flags.BoolVar(&b.ignoreKeys, "forgets", false, "apply every call")
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
	_ = commands() // exits at the end of the standard input
	sendReport(report{Kind: listening, Address: lis.Addr().String()})
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
	if b.apply(key, op) {
		sendReport(report{Kind: held, Key: key, Text: "holds its reply back"})
		<-r.Context().Done() // the caller is gone
		return
	}
	_ = json.NewEncoder(w).Encode(op) // an error means that the caller is gone
}

// apply applies an operation under a new key, and reports whether to withhold the reply.
func (b *bank) apply(key string, op step) (hold bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := find(b.ledger, key)
	if p == nil {
		p = &posting{Key: key}
		b.ledger = append(b.ledger, p)
	}
	p.Calls++
	if p.Applied > 0 && !b.ignoreKeys {
		say("knows the key of %s: moves nothing", op.Tool)
		return false
	}
	p.Applied++
	p.Moved += op.Cents
	say("applies %s of %s", op.Tool, money(op.Cents))
	hold = b.hold != "" && strings.HasSuffix(key, b.hold) && p.Calls == 1
	return hold
}

func find(ledger []*posting, key string) *posting {
	for _, p := range ledger {
		if p.Key == key {
			return p
		}
	}
	return nil
}

func (b *bank) show(w http.ResponseWriter, _ *http.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	_ = json.NewEncoder(w).Encode(b.ledger)
}

// bankClient is a client of the bank.
type bankClient struct {
	url    string
	client *http.Client
}

func newBankClient(address string) *bankClient {
	// net/http repeats a request with an idempotency key when a kept connection fails. The bank
	// counts calls, so each call has a connection of its own.
	return &bankClient{url: "http://" + address, client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
}

// operate requests an operation under a key, once, and returns the bank's answer as JSON.
func (t *bankClient) operate(ctx context.Context, key, operation string) (string, error) {
	reply, err := t.call(ctx, http.MethodPost, "/operations", key, operation)
	return string(bytes.TrimSpace(reply)), err
}

// ledger returns the bank's postings.
func (t *bankClient) ledger(ctx context.Context) (l []*posting, err error) {
	reply, err := t.call(ctx, http.MethodGet, "/ledger", "", "")
	if err == nil {
		err = json.Unmarshal(reply, &l)
	}
	return l, err
}

func (t *bankClient) call(ctx context.Context, method, path, key, body string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, t.url+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set(idempotencyKey, key)
	res, err := t.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	reply, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("the bank: %s: %s", res.Status, reply)
	}
	return reply, err
}

// money returns an amount of cents with two decimals.
func money(cents int64) string { return fmt.Sprintf("%d.%02d", cents/100, cents%100) }

// encode returns a value of this package as JSON.
func encode(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // unreachable: v has only numbers and texts
	}
	return string(b)
}
