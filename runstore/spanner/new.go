package spanner

import (
	"context"
	"strings"

	"cloud.google.com/go/spanner"
	"google.golang.org/api/option"
	"google.golang.org/grpc"

	"github.com/tapestore/tapestore/runstore/adapter"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
)

// New opens the store in the database of a client that the caller has made with [ClientOptions].
// The caller closes the client, after the store. opts may be nil. It need not name the database; its
// Role is not used, because the client has one. Opening connects to the Admin API as [Open] does.
//
// Errors: those of Open, and ErrInvalid for a client that was made without ClientOptions.
func New(ctx context.Context, client *spanner.Client, opts *Options) (*Store, error) {
	const op = "open spanner store"
	if client == nil {
		return nil, outcome.Wrap(op, "", adapter.Invalid("client", "is missing"))
	}
	var own Options
	if opts != nil {
		own = *opts
	}
	// projects/P/instances/I/databases/D
	if parts := strings.Split(client.DatabaseName(), "/"); own.Project+own.Instance+own.Database == "" && len(parts) == 6 {
		own.Project, own.Instance, own.Database = parts[1], parts[3], parts[5]
	}
	if named := own.database(); named != client.DatabaseName() { // before opening creates it
		return nil, outcome.Wrap(op, "", adapter.Invalid("client", "is of the database %s, and the options name %s", client.DatabaseName(), named))
	}
	return newStore(ctx, client, &own)
}

// ClientOptions returns options that every client of the store needs. They let the store see each
// reply to a commit: the client library repeats some transactions by itself, and an error that it
// returns does not tell whether an earlier commit was applied (I8). Pass them before options with
// interceptors of your own, so that the store sees the replies as your interceptors leave them.
func ClientOptions() []option.ClientOption {
	return []option.ClientOption{option.WithGRPCDialOption(grpc.WithChainUnaryInterceptor(watchCommits, boundRollbacks))}
}

// checkClient checks that the store sees the commits of the caller's client. It sends an empty
// transaction.
func (s *engine) checkClient(ctx context.Context) error {
	probe := commitTracker{here: s.here}
	err := s.retry(probe.watch(ctx), func(ctx context.Context) error {
		_, err := s.client.ReadWriteTransaction(ctx, func(context.Context, *spanner.ReadWriteTransaction) error { return nil })
		return err
	})
	if err == nil && !probe.seen.Load() {
		return adapter.Invalid("client", "was made without spanner.ClientOptions, so that the store could not learn of a commit whose reply is lost")
	}
	return err
}
