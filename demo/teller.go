package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
)

// teller is a client of the bank.
type teller struct {
	url    string
	client *http.Client
}

func newTeller(address string) *teller {
	return &teller{url: "http://" + address, client: &http.Client{Transport: &http.Transport{
		// net/http sends a request with an idempotency key again by itself when a
		// connection that it had kept fails. The calls are counted here, so each one
		// gets a connection of its own.
		DisableKeepAlives: true,
	}}}
}

// operate asks for an operation under a key, once.
func (t *teller) operate(ctx context.Context, key, operation string) (receipt, error) {
	var r receipt
	err := t.call(ctx, http.MethodPost, "/operations", key, operation, &r)
	return r, err
}

// ledger returns what the bank did.
func (t *teller) ledger(ctx context.Context) ([]posting, error) {
	var l []posting
	err := t.call(ctx, http.MethodGet, "/ledger", "", "", &l)
	return l, err
}

func (t *teller) call(ctx context.Context, method, path, key, body string, reply any) error {
	req, err := http.NewRequestWithContext(ctx, method, t.url+path, bytes.NewBufferString(body))
	if err != nil {
		return err
	}
	if key != "" {
		req.Header.Set(idempotencyKey, key)
	}
	res, err := t.client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(res.Body, 1000))
		return fmt.Errorf("the bank: %s: %s", res.Status, bytes.TrimSpace(text))
	}
	return json.NewDecoder(res.Body).Decode(reply)
}
