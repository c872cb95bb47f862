package alloydb_test

import (
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/alloydb"
	"github.com/tapestore/tapestore/runstore/postgres"
)

const (
	instance = "projects/p/locations/r/clusters/c/instances/i"
	pool     = "projects/p/locations/r/clusters/c/instances/pool"
)

func parse(t *testing.T, raw string) (*alloydb.Options, error) {
	t.Helper()
	u, err := runstore.ParseURL(raw)
	if err != nil {
		t.Fatal(err)
	}
	return alloydb.ParseURL(u)
}

func TestParseURL(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]alloydb.Options{
		"alloydb://u@" + instance + "/d":                 {Instance: instance, User: "u", Database: "d"},
		"alloydb://u:p%2Fw%3F@" + instance + "/d":        {Instance: instance, User: "u", Password: "p/w?", Database: "d"},
		"alloydb://u@/d?instance=" + instance:            {Instance: instance, User: "u", Database: "d"},
		"alloydb://sa@p.iam@" + instance + "/d?auth=iam": {Instance: instance, User: "sa@p.iam", Database: "d", IAM: true},
		"alloydb://u@projects/example.com:p/locations/r/clusters/c/instances/i/d": {
			Instance: "projects/example.com:p/locations/r/clusters/c/instances/i", User: "u", Database: "d"},
		"alloydb://u@" + instance + "/d?auth=password&ip=psc&refresh=lazy&read_pool=" + pool: {
			Instance: instance, User: "u", Database: "d", IP: alloydb.PSC, Lazy: true, ReadPool: pool},
		// A project's number and its id are not compared.
		"alloydb://u@" + instance + "/d?read_pool=projects/123/locations/r/clusters/c/instances/pool": {
			Instance: instance, User: "u", Database: "d", ReadPool: "projects/123/locations/r/clusters/c/instances/pool"},
		"alloydb://u@projects/123/locations/r/clusters/c/instances/i/d?read_pool=" + pool: {
			Instance: "projects/123/locations/r/clusters/c/instances/i", User: "u", Database: "d", ReadPool: pool},
		"alloydb://u@" + instance + "/d?ip=public&refresh=ahead&pool_max_conns=7&schema=s&migrate=no&pooled=yes&retry_timeout=5s": {
			Instance: instance, User: "u", Database: "d", IP: alloydb.PublicIP, Params: url.Values{"pool_max_conns": {"7"}},
			Postgres: &postgres.Options{Schema: "s", NoMigrate: true, Pooled: true, RetryTimeout: 5 * time.Second}},
		"alloydb://u:pw@localhost/d":                  {Host: "localhost", User: "u", Password: "pw", Database: "d"},
		"alloydb://u@10.0.0.1:6432/d?sslmode=require": {Host: "10.0.0.1:6432", User: "u", Database: "d", Params: url.Values{"sslmode": {"require"}}},
		"alloydb://[::1]:5432/d?read_pool=[::1]:5433": {Host: "[::1]:5432", Database: "d", ReadPool: "[::1]:5433"},
		"alloydb://projects:5432/d":                   {Host: "projects:5432", Database: "d"},
	} {
		got, err := parse(t, raw)
		if err != nil {
			t.Errorf("%s: %v", raw, err)
			continue
		}
		if want.Params == nil {
			want.Params = url.Values{}
		}
		if want.Postgres == nil {
			want.Postgres = &postgres.Options{}
		}
		if !reflect.DeepEqual(*got, want) {
			t.Errorf("%s:\n got %+v %+v\nwant %+v %+v", raw, *got, *got.Postgres, want, *want.Postgres)
		}
	}
}

// All problems are reported by their keys, without the password.
func TestParseURLRefuses(t *testing.T) {
	t.Parallel()
	const form = "store URL: of scheme alloydb is not of a known form"
	for raw, want := range map[string][]string{
		"alloydb:u@h/d":                                              {form},
		"alloydb://u@" + instance:                                    {form},
		"alloydb://u@projects/p/d":                                   {form},
		"alloydb://u@" + instance + "/d/e":                           {form},
		"alloydb://u@h:5432/d/e":                                     {form},
		"alloydb://u@projects/p/zones/r/clusters/c/instances/i/d":    {`instance: "projects/p/zones/r/clusters/c/instances/i" has "zones" where "locations" belongs`},
		"alloydb://u@projects/p/locations//clusters/c/instances/i/d": {`has no name behind "locations"`},
		"alloydb://u@" + instance + "/":                              {"database: is missing"},
		"alloydb://" + instance + "/d":                               {"user: is missing"},
		"alloydb://u@/d":                                             {"instance: is missing; write projects/"},
		"alloydb://u@/d?instance=i":                                  {`instance: "i" is no full name`},
		"alloydb://u@h/d?instance=" + instance:                       {"instance: goes without a host"},
		"alloydb://u@" + instance + "/d?instance=" + instance:        {"instance: is there already"},
		"alloydb://u@h:0/d":                                          {"host: the port"},
		"alloydb://u@a,b/d":                                          {`host: "a,b" is no address`},
		"alloydb://u@h/d?auth=iam&ip=public&refresh=lazy":            {"auth: ", "--auto-iam-authn", "ip: ", "refresh: "},
		"alloydb://u@" + instance + "/d?auth=both&ip=left&refresh=now&pooled=maybe": {
			`auth: "both" is none; write iam or password`, `ip: "left" is none; write private, public or psc`, "refresh: ", "pooled: "},
		"alloydb://u@" + instance + "/d?sslmode=require":  {"sslmode: goes with a host"},
		"alloydb://u@" + instance + "/d?pool_max_conns=x": {"cannot parse pool_max_conns"},
		"alloydb://u@" + instance + "/d?ssl=yes":          {`unknown key "ssl"; alloydb knows auth, instance, ip, read_pool, refresh, schema`},
		"alloydb://u@" + instance + "/d?ip=psc&ip=psc":    {`key "ip" is given 2 times`},
		"alloydb://u@" + instance + "/d?read_pool=pool":   {`read_pool: "pool" is no full name`},
		"alloydb://u@" + instance + "/d?read_pool=projects/p/locations/r/clusters/other/instances/pool": {
			"read_pool: ", "is not in the cluster projects/p/locations/r/clusters/c of the instance"},
		"alloydb://u@" + instance + "/d?read_pool=projects/p/locations/s/clusters/c/instances/pool":       {"read_pool: ", "is not in the cluster"},
		"alloydb://u@" + instance + "/d?read_pool=projects/q/locations/r/clusters/c/instances/pool":       {"read_pool: ", "is not in the cluster"},
		"alloydb://u@" + instance + "/d?read_pool=projects/123/locations/r/clusters/other/instances/pool": {"read_pool: ", "is not in the cluster"},
		"alloydb://u@projects/123/locations/r/clusters/c/instances/i/d?read_pool=projects/124/locations/r/clusters/c/instances/pool": {
			"read_pool: ", "is not in the cluster projects/123/locations/r/clusters/c of the instance"},
		"alloydb://u@projects/p/locations/r/d?instance=projects/p&read_pool=" + pool: {"instance: "},
		"alloydb://u@h/d?read_pool=" + pool:                                          {"read_pool: ", "is no address"},
		"alloydb://sa@p.iam.gserviceaccount.com@" + instance + "/d?auth=iam":         {"user: ", "write sa@p.iam"},
		"alloydb://u:hunter2@" + instance + "/d?auth=iam":                            {"password: goes without auth=iam"},
		// A password that is not escaped.
		"alloydb://u:hunter2/x@h/d":                   {form},
		"alloydb://u:2/hunter2@h/d":                   {form},
		"alloydb://u:2/hunter2@h":                     {form},
		"alloydb://u:x/hunter2@" + instance + "/d":    {form},
		"alloydb://u:x?hunter2@" + instance + "/d":    {form},
		"alloydb://u:1?hunter2@h/d":                   {form},
		"alloydb://u:1?hunter2@h":                     {form},
		"alloydb://u:x#hunter2@h/d":                   {form},
		"alloydb://u:hunter2%zz@h/d":                  {form},
		"alloydb://u:hunter2@" + instance + "/d?x=y":  {`unknown key "x"`},
		"alloydb://u:hunter2@h/d?pool_max_conns=many": {"cannot parse pool_max_conns"},
		"alloydb://u:hunter2@h/d?sslmode=perhaps":     {"sslmode"},
	} {
		opts, err := parse(t, raw)
		if err == nil || opts != nil {
			t.Errorf("%s: taken", raw)
			continue
		}
		for _, want := range want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s:\n got %v\nwant it to have %q", raw, err, want)
			}
		}
		if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the password is told: %v", raw, err)
		}
		if runstore.KindOf(err) != runstore.ErrInvalid {
			t.Errorf("%s: kind %v, want ErrInvalid", raw, runstore.KindOf(err))
		}
	}
}

func TestOpenRefusesOptions(t *testing.T) {
	t.Parallel()
	if _, err := alloydb.Open(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "open alloydb store: ") ||
		!strings.Contains(err.Error(), "instance: is missing") || !strings.Contains(err.Error(), "database: is missing") {
		t.Errorf("no options: %v", err)
	}
	opts := alloydb.Options{Instance: instance, Database: "d", User: "u", ReadPool: pool}
	if _, err := alloydb.Open(t.Context(), &opts); err == nil || !strings.Contains(err.Error(), "read_pool: goes with OpenWithReadPool only") {
		t.Errorf("a read pool for Open: %v", err)
	}
	opts.ReadPool, opts.MaxConns, opts.Params = "", -1, url.Values{"host": {"h"}, "dbname": {"d"}}
	if _, err := alloydb.OpenWithReadPool(t.Context(), &opts); err == nil || !strings.Contains(err.Error(), "read_pool: is missing") {
		t.Errorf("OpenWithReadPool without one: %v", err)
	}
	_, err := alloydb.Open(t.Context(), &opts)
	for _, want := range []string{"pool_max_conns: -1 is negative", "host: is not among the driver's settings", "dbname: is not among"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want it to have %q", err, want)
		}
	}
	if runstore.KindOf(err) != runstore.ErrInvalid {
		t.Errorf("kind %v, want ErrInvalid", runstore.KindOf(err))
	}
}
