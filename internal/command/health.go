package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/spf13/cobra"
)

func newHealthCommand() *cobra.Command {
	var address string
	var live bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "health",
		Short: "Ask a server on this machine whether it is ready",
		Long: `Ask a server's probe whether it is ready: its store answers. With --live, whether the process
lives. It is for container images, which have no other program to ask with. Without --address
the address is the one that serve takes from TAPE_HEALTHZ_LISTEN, tape.yaml or its default. The
exit status is 0 if the answer is yes or the server has no probes, and 1 otherwise.`,
		Example: `  tapestore health --address 127.0.0.1:7879`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			address, err := probeAddress(address, os.LookupEnv)
			if err != nil {
				return err
			}
			if timeout <= 0 {
				return fmt.Errorf("--timeout is %v; it is above zero", timeout)
			}
			if address == "" {
				_, err := fmt.Fprintln(cmd.OutOrStdout(), "no probes")
				return err
			}
			path := "/readyz"
			if live {
				path = "/healthz"
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			answer, err := askProbe(ctx, "http://"+address+path)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), answer)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&address, "address", "", "host:port of serve's --healthz-listen; if empty, as serve finds it [TAPE_HEALTHZ_LISTEN]")
	f.BoolVar(&live, "live", false, "ask only whether the process lives")
	f.DurationVar(&timeout, "timeout", 3*time.Second, "how long to wait for the answer")
	return cmd
}

// probeAddress returns the address of the probes from a flag, or else as a server with this
// environment resolves it: from the variable, the file or the default. It returns "" if the server
// has no probes. A server that listens on every address is asked on loopback.
func probeAddress(flag string, env func(string) (string, bool)) (string, error) {
	address, from := flag, "--address"
	if address == "" {
		_, s := newSettings(newServeCommand(), env)
		v := s.values["healthz-listen"]
		if !v.given() && len(s.faults) > 0 { // the faulty file may name another address
			return "", errors.Join(s.faults...)
		}
		if v.text == "" {
			return "", nil
		}
		address, from = v.text, v.place
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", fmt.Errorf("%s is %s; it is host:port, that of serve's --healthz-listen", from, quoted(address))
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port), nil
}

// maxProbe bounds what is read of an answer.
const maxProbe = 1 << 10

// askProbe returns the text of a probe that answers with status 200. It uses no proxy.
func askProbe(ctx context.Context, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	transport := &http.Transport{DisableKeepAlives: true}
	reply, err := transport.RoundTrip(req)
	if err != nil {
		return "", fmt.Errorf("no answer from %s: %w", url, err)
	}
	defer func() { _ = reply.Body.Close() }() // it was read
	text, err := io.ReadAll(io.LimitReader(reply.Body, maxProbe))
	if err != nil {
		return "", fmt.Errorf("no answer from %s: %w", url, err)
	}
	answer := oneLine(fmt.Errorf("%s", text))
	if reply.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s answers %s: %s", url, reply.Status, answer)
	}
	return answer, nil
}
