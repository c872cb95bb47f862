package spanner

import (
	"strings"
	"time"

	"cloud.google.com/go/spanner/admin/database/apiv1/databasepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/emulators/internal/host"
)

// updateSchema retries a schema change until no read-write transaction and no other change is in
// the way. The emulator runs one of them at a time and refuses the others; on the service, changes
// queue up beside transactions. After the time for which a transaction may stay idle the client
// gets the emulator's error.
func (s *shim) updateSchema(a *rpc, method string, req *databasepb.UpdateDatabaseDdlRequest) error {
	ticker := time.NewTicker(host.PollInterval)
	defer ticker.Stop()
	for until := time.Now().Add(s.idle + answerTimeout); ; {
		err := s.relay(outgoing(a.Context(), a.ServerStream.Context()), method, req, a.sendFrame)
		if !isSchemaBusy(err) || time.Now().After(until) {
			return err
		}
		select {
		case <-ticker.C:
		case <-a.Context().Done():
			return status.FromContextError(a.Context().Err()).Err()
		}
	}
}

// isSchemaBusy reports whether err refuses a schema change because another operation is running. It
// compares the message, because a bad change has the same code.
func isSchemaBusy(err error) bool {
	return status.Code(err) == codes.FailedPrecondition &&
		strings.HasPrefix(status.Convert(err).Message(), "Schema change operation rejected because a concurrent schema change operation or read-write transaction")
}
