package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/runstore"
)

// leases is the state shared by the subcommands of lease.
type leases struct {
	inspection
	asJSON bool

	ifToken, operator, reason string
	whoever, quiet            bool
}

func newLeaseCommand() *cobra.Command {
	var l leases
	cmd := &cobra.Command{
		Use:   "lease",
		Short: "Show who holds a run and who held it, or take its lease away",
		Example: `  tapestore lease show RUN_ID --store sqlite:./tape.db
  tapestore lease terms RUN_ID --store sqlite:./tape.db
  tapestore lease break RUN_ID --if-token 7 --operator ada --reason 'the agent loops' --store sqlite:./tape.db`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return errors.New("say what to do: show RUN_ID, terms RUN_ID or break RUN_ID")
		},
	}
	f := cmd.PersistentFlags()
	f.StringVar(&l.url, "store", "", "store URL ["+storeVariable+"]")
	f.StringVar(&l.format, "format", "table", "table or json")
	f.BoolVar(&l.asJSON, "json", false, "the same as --format json")
	l.limit = 100
	show := l.command("show RUN_ID", "The lease of a run: its holder, its times and how the grant before ended", cobra.ExactArgs(1), l.show)
	show.Long = `Show the lease of a run as its store has it. All times are on the store clock, which also
judges what remains; nothing is compared with the clock of this machine.

A lease that has expired is held until another holder acquires it: its holder may still
commit and renew. A free lease shows the last token and the expiry of the last grant. The
store does not show whether that grant was released or revoked; the next grant does.`
	terms := l.command("terms RUN_ID", "The terms of a run: each token with its owner, its times and what it wrote", cobra.ExactArgs(1), l.terms)
	terms.Long = `List the terms of a run, oldest first: each token with its owner and reactor, when it was
granted, when it expired as last renewed, when and how it ended, the number of its events
and records, and the first and last of its writes. ENDED is the time from which its fence
was refused: for an expired lease that of the next grant.

The store keeps the last 32 terms of a run, fewer where their names are very long, also
those before a purge. Earlier terms, and those of a store that keeps none, are what the
stamps of the journal and of the records show. Of these some things are not known:

  - the owner of a token that wrote nothing, or whose writes are records that were
    changed or deleted since. Such tokens are shown, as a range where there are several;
  - when the term began and ended: only its first and last write are known;
  - its reactor and how it ended, unless it was the last before the current one or was
    broken by an operator (tapestore lease break);
  - how many tokens of an epoch followed the last one that wrote, once a later epoch began;
  - terms before the run was purged. Their tokens count as tokens that wrote nothing;
  - terms of another store, from which the run was imported.

Writes without a fence belong to no term. A page has --limit terms; --from is the token at
which it begins.`
	terms.Flags().StringVar(&l.from, "from", "", "begin the page at this token")
	terms.Flags().IntVar(&l.limit, "limit", 100, "length of a page")
	breaks := &cobra.Command{
		Use: "break RUN_ID", Short: "Take a lease away from its holder", Args: cobra.ExactArgs(1),
		Long: `Take the lease of a run away from its holder (break-glass), for a holder that renews its
lease and must not go on. From then on the store refuses every write under its fence, and
the lease is free: another driver can acquire it at once. A write without a fence is not
refused, so stop a driver that presents none.

--if-token is the token that tapestore lease show shows. If the token has moved, another
holder has the lease already, and nothing is changed. --whoever breaks the lease of
whatever holder there is.

The run's journal gets an event of kind "lease" with the operator's name, the reason and
the former holder, in the same step in which the grant ends. With --quiet the run gets the
record "lease/break" instead. Tape's readers pass the event: a client that follows the
journal of one run sees an entry of kind "lease", and the feed of all runs leaves it out.

If the command is killed, either nothing was changed or the lease was broken and has
expired a millisecond later; repeat the command to find out.

The exit status is 0 when the lease was broken, 2 when it was not because the token has
moved or the lease is free, and 1 otherwise. The message says whether nothing was changed
or whether that is unknown.`,
		RunE: l.breakLease,
	}
	breaks.Flags().StringVar(&l.ifToken, "if-token", "", "the token of the grant to end, as show prints it")
	breaks.Flags().BoolVar(&l.whoever, "whoever", false, "end whatever grant is current, instead of --if-token")
	breaks.Flags().StringVar(&l.operator, "operator", "", "name of the person who decides, stored with the operation")
	breaks.Flags().StringVar(&l.reason, "reason", "", "reason for the operation, stored with it")
	breaks.Flags().BoolVar(&l.quiet, "quiet", false, `put the record "lease/break" instead of a journal event`)
	for _, sub := range []*cobra.Command{show, terms, breaks} {
		sub.PreRun = func(*cobra.Command, []string) {
			if l.asJSON {
				l.format = "json"
			}
		}
	}
	cmd.AddCommand(show, terms, breaks)
	return cmd
}

// leaseView is the JSON output of lease show.
type leaseView struct {
	Run       string `json:"run"`
	State     string `json:"state"` // "live", "expired" or "free"
	Token     int64  `json:"token"`
	TokenText string `json:"token_text"`
	Owner     string `json:"owner,omitempty"`
	Reactor   string `json:"reactor,omitempty"`
	Strict    bool   `json:"strict"`

	Now       time.Time `json:"now"`
	Granted   time.Time `json:"granted,omitzero"`
	Renewed   time.Time `json:"renewed,omitzero"`
	Expires   time.Time `json:"expires,omitzero"`
	Remaining float64   `json:"remaining_seconds"` // negative after the expiry, 0 if the lease is free
	TTL       float64   `json:"ttl_seconds,omitempty"`
	MaxStall  float64   `json:"max_stall_seconds,omitempty"`
	Progress  time.Time `json:"progressed,omitzero"`

	Former        string `json:"former_grant,omitempty"`
	PreemptedFrom string `json:"preempted_from,omitempty"`
	Reason        string `json:"preempted_reason,omitempty"`
}

func (l *leases) show(ctx context.Context, args []string) error {
	head, err := l.store.GetRun(ctx, runstore.RunID(args[0]))
	if err != nil {
		return err
	}
	// The clock is read again, after the head, so a renewal in between does not look like the future.
	if l.now, err = l.store.Now(ctx); err != nil {
		return err
	}
	h := head.Holder
	v := leaseView{Run: string(head.ID), State: "free", Token: int64(head.Token), TokenText: head.Token.String(), Now: l.now, Expires: head.ExpiresAt}
	remaining := "-"
	if h.Token != 0 {
		v.State = "expired"
		if head.Live(l.now) {
			v.State = "live"
		}
		v.Owner, v.Reactor, v.Strict = string(h.Owner), string(h.Reactor), h.Strict
		v.Granted, v.Renewed, v.Progress = h.GrantedAt, h.RenewedAt, h.ProgressedAt
		left := h.ExpiresAt.Sub(l.now).Round(time.Millisecond)
		v.Remaining, v.TTL, v.MaxStall = left.Seconds(), h.TTL.Seconds(), h.MaxStall.Seconds()
		v.Former, v.PreemptedFrom, v.Reason = h.Former.String(), string(h.Preempted.From), h.Preempted.Reason
		if remaining = left.String(); left <= 0 {
			remaining = fmt.Sprintf("expired %v ago", -left)
		}
	}
	if l.format == "json" {
		return l.json(v)
	}
	stall := "-"
	if h.MaxStall > 0 {
		stall = h.MaxStall.String()
	}
	facts := [][]any{
		{"run", v.Run}, {"lease", v.State}, {"token", tokenWord(head.Token)}, {"owner", v.Owner}, {"reactor", v.Reactor}, {"strict", v.Strict},
		{"now", v.Now}, {"granted", v.Granted}, {"renewed", v.Renewed}, {"expires", v.Expires}, {"remaining", remaining},
		{"ttl", h.TTL}, {"max stall", stall}, {"progressed", v.Progress},
		{"former grant", v.Former}, {"preempted from", v.PreemptedFrom}, {"preempted reason", v.Reason},
	}
	return l.inspection.show([]string{"FACT", "VALUE"}, facts)
}

// tokenWord returns a token as a number, with its epoch and counter where it has an epoch.
func tokenWord(t runstore.Token) string {
	if t.Epoch() == 0 {
		return t.String()
	}
	return fmt.Sprintf("%d (%v)", int64(t), t)
}

// parseToken parses a token as a number, or in the form epoch.counter, which messages have.
func parseToken(text string) (runstore.Token, error) {
	epoch, counter, readable := strings.Cut(text, ".")
	if !readable {
		epoch, counter = "0", text
	}
	e, err := strconv.ParseInt(epoch, 10, 64)
	n, err2 := strconv.ParseInt(counter, 10, 64)
	t := runstore.Epoch(e).Floor() + runstore.Token(n)
	if err != nil || err2 != nil || n < 1 || e < 0 || e > int64(runstore.MaxEpoch) || readable && t.Counter() != n {
		return 0, fmt.Errorf("%q is not a token: a token is a number from 1 on, or EPOCH.NUMBER", text)
	}
	return t, nil
}

// brokenView is the JSON output of lease break.
type brokenView struct {
	Run       string    `json:"run"`
	Broken    int64     `json:"broken_token"`
	From      string    `json:"from"`
	Reactor   string    `json:"reactor"`
	Live      bool      `json:"live"`
	Token     int64     `json:"token"`
	TokenText string    `json:"token_text"`
	Time      time.Time `json:"time"`
	Seq       int64     `json:"seq,omitempty"`
	Operator  string    `json:"operator"`
	Reason    string    `json:"reason"`
}

// exitError is an error with an exit status other than 1.
type exitError struct {
	error
	status int
}

func (e *exitError) Unwrap() error { return e.error }

// exitRefused is the exit status of a command that was refused, or that found what it looked for.
const exitRefused = 2

func (l *leases) breakLease(cmd *cobra.Command, args []string) (err error) {
	ctx, stop := interruptible(cmd)
	defer stop()
	req := lease.BreakRequest{
		Run: runstore.RunID(args[0]), Whoever: l.whoever, Operator: runstore.Owner(l.operator), Reason: l.reason, Quiet: l.quiet,
	}
	address, err := givenStore(l.url, os.LookupEnv)
	switch {
	case err != nil:
		return err
	case l.format != "table" && l.format != "json":
		return fmt.Errorf("--format is %q; it is table or json", l.format)
	case l.ifToken == "" && !l.whoever:
		return errors.New("name the token to end with --if-token TOKEN (tapestore lease show prints it), or end whatever grant is current with --whoever")
	case l.ifToken != "" && l.whoever:
		return errors.New("give --if-token or --whoever, not both")
	case l.operator == "":
		return errors.New("say who decides with --operator NAME")
	case l.reason == "":
		return errors.New("say why with --reason TEXT")
	case l.ifToken != "":
		if req.Token, err = parseToken(l.ifToken); err != nil {
			return fmt.Errorf("--if-token %w", err)
		}
	}
	if l.store, err = runstore.Open(ctx, existing(address)); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.store.Close()) }()
	broken, err := lease.Break(ctx, l.store, req)
	var above *runstore.StoreBehindError
	switch {
	case errors.Is(err, lease.ErrFree):
		return &exitError{fmt.Errorf("nothing was broken: %w", err), exitRefused}
	case errors.Is(err, runstore.ErrConflict):
		return &exitError{fmt.Errorf("the lease was not broken, because the token has moved; see tapestore lease show: %w", err), exitRefused}
	case errors.As(err, &above):
		return fmt.Errorf("the lease was not broken: the run has had no token above %v; is --if-token %s mistyped? tapestore lease show prints the token. Otherwise: %w",
			runstore.Token(above.Known), l.ifToken, err)
	case err != nil && runstore.OutcomeOf(err) == runstore.NotApplied:
		return fmt.Errorf("the lease was not broken: %w", err)
	case err != nil && broken.Token != 0:
		return fmt.Errorf("the lease was broken, but a write of its holder may still be applied: %w", err)
	case err != nil:
		return fmt.Errorf("it is unknown whether the lease was broken; repeat the command, which reports a token that has moved if it was: %w", err)
	}
	v := brokenView{
		Run: args[0], Broken: int64(broken.Former.Token), From: string(broken.Former.Owner), Reactor: string(broken.Former.Reactor), Live: broken.Live,
		Token: int64(broken.Token), TokenText: broken.Token.String(), Time: broken.Time, Seq: int64(broken.Seq), Operator: l.operator, Reason: l.reason,
	}
	l.out = cmd.OutOrStdout()
	if l.format == "json" {
		return l.json(v)
	}
	state, where := "live", fmt.Sprintf("the event at seq %d says why", v.Seq)
	if !v.Live {
		state = "expired"
	}
	if l.quiet {
		where = fmt.Sprintf("the record %q says why", string(lease.BreakKey))
	}
	_, err = fmt.Fprintf(l.out, "the lease of %s under token %s, which was %s, has ended\nthe token is now %s and the lease is free; %s\n",
		plain(v.From), tokenWord(broken.Former.Token), state, tokenWord(broken.Token), where)
	return err
}
