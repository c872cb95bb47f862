package command

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tapestore/tapestore/inspector"
	"github.com/tapestore/tapestore/internal/clientlimit"
	"github.com/tapestore/tapestore/runstore"
)

// uiConfig is what the command ui was asked for.
type uiConfig struct {
	url, listen      string
	open, allowBreak bool
	perSecond        int                     // requests; 0 for no limit
	openFile         func(file string) error // opens a file in a browser
	out, notes       io.Writer
}

func newUICommand() *cobra.Command {
	cfg := uiConfig{openFile: openFile}
	cmd := &cobra.Command{
		Use:   "ui",
		Short: "Look into a store with a browser",
		Long: `Serve a page on this machine that shows the runs of a store, the journal, records and lease of
a run, the queues, the end of the feed and the shards of groups. It reads the store as
tapestore inspect does, and creates, migrates and changes nothing.

With --allow-break the page can take a lease away from its holder, as tapestore lease break
does: it asks for a name and a reason, and ends the grant that it shows and no later one.

The page needs the token in the printed address, which is a new one each time, so that other
users of this machine cannot read the store. --listen accepts loopback addresses only.`,
		Example: `  tapestore ui --store sqlite:./tape.db
  tapestore ui --store sqlite:./tape.db --listen 8080 --allow-break`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := interruptible(cmd)
			defer stop()
			cfg.out, cfg.notes = cmd.OutOrStdout(), cmd.ErrOrStderr()
			return cfg.run(ctx)
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.url, "store", "", "store URL ["+storeVariable+"]")
	f.StringVar(&cfg.listen, "listen", "127.0.0.1:0", "loopback address and port, or a port alone; port 0 chooses a free one")
	f.BoolVar(&cfg.open, "open", false, "open the page in the browser of this desktop")
	f.IntVar(&cfg.perSecond, "max-calls-per-second", 0, "requests to the page's API per second, after a burst of twice as many; 0 for no limit")
	f.BoolVar(&cfg.allowBreak, "allow-break", false, "let the page take leases away from their holders")
	return cmd
}

// loopbackAddress returns the address of a --listen flag, which must be one of the loopback interface.
func loopbackAddress(listen string) (string, error) {
	if _, err := strconv.ParseUint(listen, 10, 16); err == nil {
		return net.JoinHostPort("127.0.0.1", listen), nil
	}
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return "", fmt.Errorf("--listen %.100q is neither a port nor host:port", listen)
	}
	ip := net.ParseIP(host)
	if !strings.EqualFold(host, "localhost") && (ip == nil || !ip.IsLoopback()) {
		return "", fmt.Errorf("--listen %.100q is not a loopback address, such as 127.0.0.1: the page has neither TLS nor users", listen)
	}
	return net.JoinHostPort(host, port), nil
}

// run serves the page until ctx ends.
func (cfg *uiConfig) run(ctx context.Context) (err error) {
	address, err := givenStore(cfg.url, os.LookupEnv)
	if err != nil {
		return err
	}
	if cfg.perSecond < 0 {
		return fmt.Errorf("--max-calls-per-second is %d; the least is 0", cfg.perSecond)
	}
	listen, err := loopbackAddress(cfg.listen)
	if err != nil {
		return err
	}
	lis, err := net.Listen("tcp", listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	defer func() { _ = lis.Close() }() // closed already if it was served
	opened := readOnly(address)
	if cfg.allowBreak {
		opened = existing(address)
	}
	store, err := runstore.Open(ctx, opened)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()

	token := rand.Text()
	log := slog.New(slog.NewTextHandler(cfg.notes, nil))
	server := &http.Server{
		Handler: inspector.New(store, &inspector.Options{Authorize: cfg.authorize(token), Logger: log}),
		// The page waits for up to 30 s for a change, and a read may take 10 s.
		ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: time.Minute, IdleTimeout: time.Minute,
		MaxHeaderBytes: 32 << 10,
		BaseContext:    func(net.Listener) context.Context { return ctx }, // ends the requests that wait
		ErrorLog:       slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	page := "http://" + lis.Addr().String() + "/#token=" + token
	if _, err := fmt.Fprintf(cfg.out, "%s\n", page); err != nil {
		return err
	}
	fmt.Fprintf(cfg.notes, "the address shows %s; Ctrl-C ends it\n", shownURL(address))
	if cfg.open {
		remove, err := cfg.show(page)
		defer remove()
		if err != nil {
			fmt.Fprintf(cfg.notes, "no browser was opened (%v); open the address yourself\n", err)
		}
	}
	ended := make(chan error, 1)
	conns := clientlimit.NewConns(clientlimit.ConnsOptions{Total: maxBrowsers, Listener: "inspector", Log: log})
	go func() { ended <- server.Serve(conns.Listen(lis)) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := server.Shutdown(bounded); err != nil {
		return errors.Join(server.Close(), fmt.Errorf("requests were cut: %w", err))
	}
	return nil
}

// authorize returns the check of the token of the address.
func (cfg *uiConfig) authorize(token string) func(*http.Request) (inspector.Access, error) {
	access := inspector.Access{Permission: inspector.Read}
	if cfg.allowBreak {
		access.Permission = inspector.Break
	}
	want := []byte("Bearer " + token)
	rates := clientlimit.NewRates(cfg.perSecond, requestQueue)
	return func(r *http.Request) (inspector.Access, error) {
		if subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), want) != 1 {
			return inspector.Access{}, inspector.ErrUnauthenticated
		}
		return inTurn(r, rates, "", access)
	}
}

// show opens the page in a browser, by way of a file that only this user can read: the arguments of a
// process are visible to every user. remove removes the file.
func (cfg *uiConfig) show(page string) (remove func(), err error) {
	file, err := os.CreateTemp("", "tapestore-ui-*.html")
	if err != nil {
		return func() {}, err
	}
	remove = func() { _ = os.Remove(file.Name()) } // of no use to others once the process has ended
	_, err = fmt.Fprintf(file, "<!doctype html><meta charset=\"utf-8\"><meta http-equiv=\"refresh\" content=\"0; url=%s\"><a href=%q>the inspector</a>\n", page, page)
	if err := errors.Join(err, file.Close()); err != nil {
		return remove, err
	}
	return remove, cfg.openFile(file.Name())
}

// openFile opens a file with the program that this desktop has for it.
func openFile(file string) error {
	name, args := "xdg-open", []string{file}
	switch runtime.GOOS {
	case "darwin":
		name = "open"
	case "windows":
		name, args = "rundll32", []string{"url.dll,FileProtocolHandler", file}
	}
	cmd := exec.Command(name, args...)
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() { _ = cmd.Wait() }() // it may run as long as the browser
	return nil
}
