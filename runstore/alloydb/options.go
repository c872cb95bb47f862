package alloydb

import (
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"cloud.google.com/go/alloydbconn"

	"github.com/tapestore/tapestore/runstore/adapter"
	"github.com/tapestore/tapestore/runstore/localclock"
	"github.com/tapestore/tapestore/runstore/postgres"
)

// IPPath is the network path that the connector takes to an instance.
type IPPath string

// The network paths. An instance need not have all of them.
const (
	PrivateIP IPPath = "private" // the default: from within the VPC
	PublicIP  IPPath = "public"
	PSC       IPPath = "psc" // Private Service Connect
)

// Options specify which store to open and how. Either Instance or Host is required.
type Options struct {
	// Instance is the full name of the primary, for the connector:
	// projects/PROJECT/locations/REGION/clusters/CLUSTER/instances/INSTANCE.
	Instance string
	// Host is "host" or "host:port" of the AlloyDB Auth Proxy or of an instance's address, reached
	// like any PostgreSQL server. The default port is 5432.
	Host string
	// Database is the name of the database, which must exist.
	Database string
	// User is the database user. With IAM it is the principal: a person's address, or a service
	// account's without ".gserviceaccount.com". With Host it may be empty; the driver's default
	// then applies.
	User string
	// Password is the user's password. If it is empty, the driver looks in PGPASSWORD and in a
	// password file.
	Password string
	// IAM logs in with the connector's credentials instead of a password. Behind the Auth Proxy,
	// use the proxy's own option.
	IAM bool
	// IP is the network path of the connector: PrivateIP by default.
	IP IPPath
	// Lazy renews the connector's certificate when a connection needs it instead of ahead of time.
	// It is meant for platforms that stop the CPU between requests.
	Lazy bool
	// ReadPool names a read pool of the same cluster, in the same form as Instance or Host. It
	// requires OpenWithReadPool. With Host, and if one name has the project's number and the other
	// its id, the caller ensures that it is of the same cluster.
	ReadPool string
	// MaxConns bounds the connections to the primary, and separately those to the read pool. 0
	// means the driver's default, which is 4 or one per CPU, plus [postgres.ReservedConns].
	MaxConns int32
	// Params are further settings of the driver and its pool, by their keys in a postgres URL:
	// pool_min_conns, connect_timeout and so on. With Host, sslmode and related keys are allowed
	// too.
	Params url.Values
	// Dialer are options of the connector for special set-ups and tests: credentials, an endpoint.
	// They are applied last and override the options derived from the fields above.
	Dialer []alloydbconn.Option
	// Postgres adjusts the store; nil means the defaults. Its Engine is ignored.
	Postgres *postgres.Options
}

// instanceForm are the parts of a full instance name; "" stands for any name.
var instanceForm = []string{"projects", "", "locations", "", "clusters", "", "instances", ""}

const writeInstance = "write projects/PROJECT/locations/REGION/clusters/CLUSTER/instances/INSTANCE"

// check returns all problems of the options, named by the keys of a URL.
func (o *Options) check() error {
	var problems []error
	bad := func(key, format string, args ...any) {
		problems = append(problems, adapter.Invalid(key, format, args...))
	}
	checkTarget := checkInstance
	switch {
	case o.Instance != "" && o.Host != "":
		bad("instance", "goes without a host; the connector finds the instance by its name")
	case o.Instance == "" && o.Host == "":
		bad("instance", "is missing; %s, or the host of the Auth Proxy", writeInstance)
	case o.Instance != "":
		problems = append(problems, checkInstance("instance", o.Instance))
		if o.User == "" {
			bad("user", "is missing; write the name of the database user, or with auth=iam the IAM principal")
		}
	default:
		problems = append(problems, checkHost("host", o.Host))
		checkTarget = checkHost
		if o.IAM {
			bad("auth", "iam is the connector's, which goes with an instance name; start the Auth Proxy with --auto-iam-authn instead")
		}
		if o.IP != "" {
			bad("ip", "goes with an instance name; a host says itself how it is reached")
		}
		if o.Lazy {
			bad("refresh", "goes with an instance name; start the Auth Proxy with --lazy-refresh instead")
		}
		if len(o.Dialer) > 0 {
			bad("dialer", "options of the connector go with an instance name")
		}
	}
	if o.ReadPool != "" && (o.Instance == "") != (o.Host == "") {
		problem := checkTarget("read_pool", o.ReadPool)
		if problem == nil && o.Instance != "" && checkInstance("instance", o.Instance) == nil && !mayShareCluster(o.Instance, o.ReadPool) {
			cluster, _, _ := strings.Cut(o.Instance, "/instances/")
			problem = adapter.Invalid("read_pool", "%q is not in the cluster %s of the instance", o.ReadPool, cluster)
		}
		problems = append(problems, problem)
	}
	if o.Database == "" {
		bad("database", "is missing; write its name behind the last slash")
	}
	switch o.IP {
	case "", PrivateIP, PublicIP, PSC:
	default:
		bad("ip", "%q is none; write private, public or psc", o.IP)
	}
	if o.IAM && o.Password != "" {
		bad("password", "goes without auth=iam; leave one of them out")
	}
	if name, is := strings.CutSuffix(o.User, ".gserviceaccount.com"); o.IAM && is {
		bad("user", "the database user of a service account is named without its ending; write %s", name)
	}
	if o.MaxConns < 0 {
		bad("pool_max_conns", "%d is negative", o.MaxConns)
	}
	return errors.Join(append(problems, o.checkParams())...)
}

// checkParams refuses keys that have another meaning here, and values that the driver refuses.
func (o *Options) checkParams() error {
	var problems []error
	for _, key := range slices.Sorted(maps.Keys(o.Params)) {
		switch {
		case slices.Contains(poolKeys, key):
		case !slices.Contains(hostKeys, key):
			problems = append(problems, adapter.Invalid(key, "is not among the driver's settings: %s", strings.Join(slices.Concat(poolKeys, hostKeys), ", ")))
		case o.Instance != "":
			problems = append(problems, adapter.Invalid(key, "goes with a host; the connector encrypts and checks by itself"))
		}
	}
	if len(problems) == 0 {
		if _, err := o.config("localhost"); err != nil {
			problems = append(problems, err)
		}
	}
	return errors.Join(problems...)
}

func checkInstance(key, name string) error {
	parts := strings.Split(name, "/")
	if len(parts) != len(instanceForm) {
		return adapter.Invalid(key, "%q is no full name; %s", name, writeInstance)
	}
	for i, part := range parts {
		switch {
		case instanceForm[i] != "" && part != instanceForm[i]:
			return adapter.Invalid(key, "%q has %q where %q belongs; %s", name, part, instanceForm[i], writeInstance)
		case instanceForm[i] == "" && !isName(part, i == 1):
			return adapter.Invalid(key, "%q has no name behind %q; %s", name, parts[i-1], writeInstance)
		}
	}
	return nil
}

// mayShareCluster reports whether the full names of two instances may be of one cluster. A project
// has an id and a number, and only the Admin API knows which belong together: an id and a number are
// therefore not compared.
func mayShareCluster(a, b string) bool {
	one, other := strings.Split(a, "/"), strings.Split(b, "/")
	if isNumber(one[1]) != isNumber(other[1]) {
		other[1] = one[1]
	}
	return slices.Equal(one[:6], other[:6]) // up to the cluster's name
}

// isNumber reports whether a project is named by its number. An id has a letter.
func isNumber(project string) bool {
	return !strings.ContainsFunc(project, func(r rune) bool { return r < '0' || r > '9' })
}

// isName reports whether s can be part of a resource name without changing its meaning. A project
// may be domain-scoped, example.com:project.
func isName(s string, project bool) bool {
	if project {
		domain, name, of := strings.Cut(s, ":")
		if of {
			return isName(domain, false) && isName(name, false)
		}
	}
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-_.", r)
	})
}

func checkHost(key, host string) error {
	const write = "write host or host:port"
	name, port := host, ""
	if strings.Contains(host, ":") {
		var err error
		if name, port, err = net.SplitHostPort(host); err != nil {
			return adapter.Invalid(key, "%q is no address; %s, and an IPv6 address in brackets", host, write)
		}
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return adapter.Invalid(key, "the port of %q is no number from 1 to 65535; %s", host, write)
		}
	}
	if name == "" || strings.ContainsAny(name, "/@?#, ") {
		return adapter.Invalid(key, "%q is no address; %s", host, write)
	}
	return nil
}

// postgres returns the options of the underlying store.
func (o *Options) postgres() *postgres.Options {
	var opts postgres.Options
	if o.Postgres != nil {
		opts = *o.Postgres
	}
	opts.Engine = "alloydb"
	return &opts
}

// clock returns this process's clock.
func (o *Options) clock() localclock.Clock {
	if o.Postgres == nil {
		return localclock.Clock{}
	}
	return localclock.New(o.Postgres.Clock)
}

func (o *Options) logger() *slog.Logger {
	if o.Postgres != nil && o.Postgres.Logger != nil {
		return o.Postgres.Logger
	}
	return slog.Default()
}
