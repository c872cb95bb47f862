// Package clientlimit bounds what one client of a server may take, so that it leaves something for the
// others: the requests that it begins per second, and its open connections.
package clientlimit

import (
	"net"
	"net/netip"
)

// Host returns the host of an address with a port, or the address if it has none.
func Host(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	return host
}

// Network returns the client that an IP address belongs to: the address or, of IPv6, the 64 bits that one
// host may choose its addresses in.
func Network(address string) string {
	ip, err := netip.ParseAddr(address)
	if err != nil || ip.Is4() {
		return "address " + address
	}
	if ip = ip.Unmap(); ip.Is4() { // a listener of both families reports IPv4 addresses mapped
		return "address " + ip.String()
	}
	return "network " + netip.PrefixFrom(ip.WithZone(""), 64).Masked().String()
}

// Share returns the part of a limit that one client may take: all but an eighth, rounded up.
func Share[N int | int64](limit N) N { return limit - limit/8 }
