package tapeconfig

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// kind is the form of a value.
type kind int

const (
	text                 kind = iota // not empty
	textOrEmpty                      // a text whose empty form has a meaning
	yesNo                            // true or false
	whole                            // a whole number above zero
	wholeOrNone                      // whole, or 0
	seconds                          // a number of seconds, from 0.001 to a day
	secondsOrNone                    // seconds, or 0
	boundedSeconds                   // seconds whose upper limit the options check
	boundedSecondsOrNone             // boundedSeconds, or 0
)

// serveKeys are the keys of the section serve.
var serveKeys = map[string]kind{
	"listen": text, "healthz_listen": textOrEmpty, "metrics_listen": textOrEmpty, "ui_listen": textOrEmpty, "store": text, "fence": text, "takeover": text,
	"max_message_bytes": whole, "max_bytes_in_flight": whole, "max_connections": whole, "max_connections_per_address": wholeOrNone, "max_streams": whole,
	"drain_s": seconds, "matcher": yesNo, "log_level": text, "log_format": text,
	"insecure": yesNo, "tls_cert": textOrEmpty, "tls_key": textOrEmpty, "tls_min_version": text,
	"tls_client_ca": textOrEmpty, "tls_client_crl": textOrEmpty, "principals": textOrEmpty,
	"oidc_issuer": textOrEmpty, "oidc_audience": textOrEmpty, "oidc_roles_claim": textOrEmpty, "oidc_tenants_claim": textOrEmpty,
	"max_calls_per_second": wholeOrNone,
	"retain_journals":      textOrEmpty, "retain_feed": textOrEmpty, "retain_tasks": textOrEmpty, "retain_dead_tasks": textOrEmpty, "retain_archive": textOrEmpty,
	"retain_pace": wholeOrNone,
}

const (
	// shortest is the unit of the shortest lease, and of time on the wire.
	shortest = time.Millisecond
	// longest is a day.
	longest = 24 * time.Hour
)

// The forms of numbers. Other forms that YAML has, such as 0x1e, 1_000 and .inf, are refused, and so
// are leading zeros, which some versions of YAML read as octal.
var (
	wholeForm  = regexp.MustCompile(`^[1-9][0-9]*$`)
	secondForm = regexp.MustCompile(`^(0|[1-9][0-9]*)(\.[0-9]+)?$`)
)

// problem returns what is wrong with a value of the kind; "" if nothing is. It never repeats a text.
func (k kind) problem(n *yaml.Node) string {
	tag := ""
	if n.Kind == yaml.ScalarNode {
		tag = n.ShortTag()
	}
	if tag == "!!null" {
		return "has no value; leave the key out for the default"
	}
	number := tag == "!!int" || tag == "!!float"
	switch k {
	case text, textOrEmpty:
		switch {
		case tag != "!!str":
			return fmt.Sprintf("is %s; it is a text. Write one that contains a colon, or looks like a number, in quotes", form(n))
		case k == text && n.Value == "":
			return "is empty; leave the key out for the default"
		}
	case yesNo:
		if tag != "!!bool" || n.Value != "true" && n.Value != "false" {
			return fmt.Sprintf("is %s; it is true or false", form(n))
		}
	case wholeOrNone:
		if !number || n.Value != "0" && !wholeForm.MatchString(n.Value) {
			return fmt.Sprintf("is %s; it is a whole number of at least 0", form(n))
		}
	case whole:
		if !number || !wholeForm.MatchString(n.Value) {
			return fmt.Sprintf("is %s; it is a whole number of at least 1", form(n))
		}
	default:
		if !number || !secondForm.MatchString(n.Value) {
			least := ""
			switch {
			case !number || !strings.HasPrefix(n.Value, "-"):
			case k == secondsOrNone || k == boundedSecondsOrNone:
				least = " of at least 0"
			default:
				least = fmt.Sprintf(" of at least %v", shortest.Seconds())
			}
			return fmt.Sprintf("is %s; it is a number of seconds%s, for example 10 or 0.5", form(n), least)
		}
		switch d, ok := parseSeconds(n.Value); {
		case ok && d == 0 && (k == secondsOrNone || k == boundedSecondsOrNone):
		case (k == seconds || k == secondsOrNone) && (!ok || d < shortest || d > longest):
			return fmt.Sprintf("%s s is out of range, the limits are %v and %v", clip(n.Value), shortest, longest)
		case !ok || d < shortest:
			return fmt.Sprintf("%s s is out of range, the least is %v", clip(n.Value), shortest)
		}
	}
	return ""
}

// parseSeconds returns a number of seconds as a duration, and false if it is too large for one.
func parseSeconds(s string) (time.Duration, bool) {
	d, err := time.ParseDuration(s + "s")
	return d, err == nil
}

// form describes a value, without its text.
func form(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a section"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.Kind == yaml.AliasNode:
		return "an alias, which is not supported"
	case n.Style&yaml.TaggedStyle != 0:
		return "a value with a tag"
	}
	switch n.ShortTag() {
	case "!!int", "!!float":
		return "the number " + clip(n.Value)
	case "!!bool":
		return n.Value
	case "!!null":
		return "empty"
	default:
		return "a text"
	}
}

// clip shortens a number for a message.
func clip(number string) string {
	if len(number) > 32 {
		return number[:32] + "…"
	}
	return number
}
