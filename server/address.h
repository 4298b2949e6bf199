// Where a server listens: what an address stands for, and whether it can be had.
#pragma once

#include <string>
#include <vector>

namespace outrider {

// True for addresses that only this machine can reach. Throws Error where the name is unknown.
bool is_loopback(const std::string& address);

// "HOST:PORT", HOST in numbers, of each of this machine's addresses that `address` stands for; of
// all addresses (0.0.0.0, ::), those at which they can be reached from here: there may be no IPv6.
// Throws Error where the name is unknown.
std::vector<std::string> own_addresses(const std::string& address, int port);

// "HOST:PORT", with brackets where HOST is an IPv6 number.
std::string host_and_port(const std::string& address, int port);

// Throws Error naming address, port and reason where one of the sockets that `address` stands for
// cannot be had: libraries do not say why, and are content with one of several.
void check_port_is_free(const std::string& address, int port);

}  // namespace outrider
