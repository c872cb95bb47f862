package spanner

import (
	"context"
	"errors"

	"cloud.google.com/go/spanner/apiv1/spannerpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
)

// probe reports whether the emulator loses a read-write transaction when another one is used in the
// same multiplexed session. Version 1.5.28 loses the older one, and later versions are reported to
// have acknowledged commits that they had not carried out. On the service such a session has any
// number of transactions. An ABORTED of one of them is no loss: the emulator runs one transaction
// at a time, whatever the sessions.
func (ds *databases) probe(ctx context.Context, conn *grpc.ClientConn) (loses bool, err error) {
	d, err := ds.create(ctx, conn, "CREATE TABLE Probe (N INT64) PRIMARY KEY (N)")
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, ds.drop(ctx, conn, d)) }()
	client := spannerpb.NewSpannerClient(conn)
	session, err := client.CreateSession(ctx, &spannerpb.CreateSessionRequest{Database: d.String(), Session: &spannerpb.Session{Multiplexed: true}})
	if err != nil {
		return false, err
	}
	read := func(selector *spannerpb.TransactionSelector) (*spannerpb.ResultSet, error) {
		return client.ExecuteSql(ctx, &spannerpb.ExecuteSqlRequest{Session: session.Name, Sql: "SELECT N FROM Probe", Transaction: selector})
	}
	var ids [2][]byte
	for i := range ids {
		t, err := client.BeginTransaction(ctx, &spannerpb.BeginTransactionRequest{Session: session.Name, Options: readWrite()})
		if err == nil {
			ids[i] = t.Id
			_, err = read(&spannerpb.TransactionSelector{Selector: &spannerpb.TransactionSelector_Id{Id: t.Id}})
		}
		if err != nil && status.Code(err) != codes.Aborted {
			return false, err
		}
	}
	acknowledged := 0
	for i, n := range []string{"1", "2"} {
		_, err := client.Commit(ctx, &spannerpb.CommitRequest{
			Session: session.Name, Transaction: &spannerpb.CommitRequest_TransactionId{TransactionId: ids[i]},
			Mutations: []*spannerpb.Mutation{{Operation: &spannerpb.Mutation_Insert{Insert: &spannerpb.Mutation_Write{
				Table: "Probe", Columns: []string{"N"},
				Values: []*structpb.ListValue{{Values: []*structpb.Value{structpb.NewStringValue(n)}}},
			}}}},
		})
		switch status.Code(err) {
		case codes.OK:
			acknowledged++
		case codes.Aborted:
		case codes.NotFound, codes.FailedPrecondition:
			return true, nil
		default:
			return false, err
		}
	}
	rows, err := read(nil)
	return len(rows.GetRows()) != acknowledged, err
}

func readWrite() *spannerpb.TransactionOptions {
	return &spannerpb.TransactionOptions{Mode: &spannerpb.TransactionOptions_ReadWrite_{ReadWrite: &spannerpb.TransactionOptions_ReadWrite{}}}
}
