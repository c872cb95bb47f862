package bigtable

import (
	"context"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"google.golang.org/api/option"

	"github.com/tapestore/tapestore/runstore/adapter/outcome"
)

// CheckProfile has a handle that does not exist yet look at its app profile. It returns
// where the store would say that it is, and the error that opening would.
func CheckProfile(ctx context.Context, o *Options, clientOpts ...option.ClientOption) (incarnation string, err error) {
	s, err := newEngine(ctx, nil, o)
	if err != nil {
		return "", err
	}
	defer s.stop()
	if err := s.checkProfile(ctx, clientOpts); err != nil {
		return "", outcome.Wrap("open bigtable store", "", outcome.NotApplied(ctx, err))
	}
	return s.incarnation(), nil
}

// SameIncarnation reports whether a store that says where it is would be taken for the
// same by a handle on a table, restored from a backup or not, and, if that is known, a
// cluster.
func SameIncarnation(stored string, o Options, cluster, restored string) bool {
	return (&engine{opts: o, cluster: cluster, restored: restored}).sameIncarnation(stored)
}

// JudgeProfile returns the problem that the doctor finds about an app profile, and the command against it.
func JudgeProfile(profile *adminpb.AppProfile) (problem, change string) {
	return (&engine{}).judgeProfile(profile)
}
