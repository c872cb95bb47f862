package emulators

import (
	"strings"
	"time"

	"cloud.google.com/go/spanner/admin/database/apiv1/databasepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// updateSchema changes a schema once no read-write transaction and no other change is
// in the way. The emulator refuses it otherwise, for its limit to one of them at a time;
// on the service, changes queue up, and transactions go on. Who waits in vain for longer
// than a transaction can be left alone is told what the emulator says.
func (s *spannerShim) updateSchema(a *spannerRPC, method string, req *databasepb.UpdateDatabaseDdlRequest) error {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for until := time.Now().Add(s.idle + spannerAnswerTimeout); ; {
		err := s.relay(spannerOutgoing(a.Context(), a.ServerStream.Context()), method, req, a.sendFrame)
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

// isSchemaBusy tells by the message, because the code is that of a bad change as well.
func isSchemaBusy(err error) bool {
	return status.Code(err) == codes.FailedPrecondition &&
		strings.HasPrefix(status.Convert(err).Message(), "Schema change operation rejected because a concurrent schema change operation or read-write transaction")
}
