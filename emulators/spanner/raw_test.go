package spanner

import (
	"context"
	"testing"

	"cloud.google.com/go/spanner/apiv1/spannerpb"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
)

// rawClient sends what the official client would not, or not when a test wants it:
// repeated calls, late ones, several transactions of one session in turn.
type rawClient struct {
	t *testing.T
	spannerpb.SpannerClient
	session string // multiplexed
}

func (o testDatabase) raw() rawClient {
	o.t.Helper()
	c := spannerpb.NewSpannerClient(dialRaw(o.t, o.Server))
	s, err := c.CreateSession(o.t.Context(), &spannerpb.CreateSessionRequest{Database: o.db.String(), Session: &spannerpb.Session{Multiplexed: true}})
	if err != nil {
		o.t.Fatal(err)
	}
	return rawClient{o.t, c, s.Name}
}

func (c rawClient) begin() []byte {
	c.t.Helper()
	tx, err := c.BeginTransaction(c.t.Context(), &spannerpb.BeginTransactionRequest{Session: c.session, Options: readWrite()})
	if err != nil {
		c.t.Fatal(err)
	}
	return tx.Id
}

func withID(id []byte) *spannerpb.TransactionSelector {
	return &spannerpb.TransactionSelector{Selector: &spannerpb.TransactionSelector_Id{Id: id}}
}

func andBegin() *spannerpb.TransactionSelector {
	return &spannerpb.TransactionSelector{Selector: &spannerpb.TransactionSelector_Begin{Begin: readWrite()}}
}

func (c rawClient) sql(ctx context.Context, tx *spannerpb.TransactionSelector, seqno int64, text string) (*spannerpb.ResultSet, error) {
	return c.ExecuteSql(ctx, &spannerpb.ExecuteSqlRequest{Session: c.session, Transaction: tx, Sql: text, Seqno: seqno})
}

func (c rawClient) commit(ctx context.Context, id []byte, ms ...*spannerpb.Mutation) (*spannerpb.CommitResponse, error) {
	return c.Commit(ctx, c.commitRequest(id, ms...))
}

func (c rawClient) commitRequest(id []byte, ms ...*spannerpb.Mutation) *spannerpb.CommitRequest {
	return &spannerpb.CommitRequest{Session: c.session, Transaction: &spannerpb.CommitRequest_TransactionId{TransactionId: id}, Mutations: ms}
}

func (c rawClient) rollback(id []byte) error {
	_, err := c.Rollback(c.t.Context(), &spannerpb.RollbackRequest{Session: c.session, TransactionId: id})
	return err
}

// rows counts them.
func (c rawClient) rows(want int) {
	c.t.Helper()
	res, err := c.sql(c.t.Context(), nil, 0, "SELECT K FROM T")
	if err != nil || len(res.Rows) != want {
		c.t.Errorf("%d rows (%v), want %d", len(res.GetRows()), err, want)
	}
}

// is fails the test if an error has another code. ABORTED has to say when to try again.
func (c rawClient) is(what string, err error, want codes.Code) {
	c.t.Helper()
	if status.Code(err) != want {
		c.t.Errorf("%s: %v, want %v", what, err, want)
	}
	if status.Code(err) != codes.Aborted {
		return
	}
	for _, detail := range status.Convert(err).Details() {
		if _, ok := detail.(*errdetails.RetryInfo); ok {
			return
		}
	}
	c.t.Errorf("%s: ABORTED without RetryInfo", what)
}

func insertInto(k string, n string) *spannerpb.Mutation {
	return &spannerpb.Mutation{Operation: &spannerpb.Mutation_Insert{Insert: &spannerpb.Mutation_Write{
		Table: "T", Columns: []string{"K", "N"},
		Values: []*structpb.ListValue{{Values: []*structpb.Value{structpb.NewStringValue(k), structpb.NewStringValue(n)}}},
	}}}
}
