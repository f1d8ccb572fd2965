import Coroutine
import Glibc

extension NetError {
  /// A sentence that says what was tried, what happened, and what to do.
  public var description: String {
    var text = operation
    if let address { text += text.isEmpty ? "\(address)" : " \(address)" }
    if !text.isEmpty { text += ": " }
    text += cause
    if bytesWritten > 0 { text += "; \(bytesWritten) bytes had been written before" }
    return text
  }

  private var cause: String {
    switch kind {
    case .system:
      let advice = Self.advice(code, isPath: address?.family == AF_UNIX)
      return "\(String(cString: strerror(code))) (error \(code))\(advice.isEmpty ? "" : "; \(advice)")"
    case .closed: return "the socket was closed on this side; do not use it after close()"
    case .busy:
      return
        "another coroutine does this already; let one coroutine read and one write, or serialise them by a FairMutex"
    case .endOfStream:
      return "the stream ended in the middle of a line or frame; the peer closed, or crashed, too early"
    case .tooLong: return "a line, frame or datagram exceeds its limit; raise the limit, or close the connection"
    case .notAllowed(let host): return "isAllowed refuses every address of \"\(host.asName)\"; nothing was sent"
    case .notSimulated: return "a simulated network cannot do that; declare the wait with World.outside, or simulate it"
    case .badAddress(let sentence): return sentence
    case .unresolved(let name, let resolver): return Self.unresolved(name, resolver, code)
    }
  }

  /// EAI_NODATA, which the C library does not declare: the name exists, and has no address.
  private static var noData: Int32 { -5 }

  static func reason(ofResolver code: Int32) -> Reason {
    switch code {
    case EAI_NONAME, noData: .noSuchName
    case EAI_AGAIN: .nameServerSilent
    default: .system
    }
  }

  private static func unresolved(_ name: String, _ resolver: Int32, _ code: Int32) -> String {
    switch resolver {
    case EAI_NONAME, noData: "the name \"\(name.asName)\" has no address; check its spelling, and /etc/hosts or the DNS"
    case EAI_AGAIN:
      "no name server has answered for \"\(name.asName)\"; check /etc/resolv.conf and the network, or try again"
    case EAI_SYSTEM:
      "\"\(name.asName)\" could not be resolved: \(String(cString: strerror(code))) (error \(code))"
        + (advice(code, isPath: false).isEmpty ? "" : "; \(advice(code, isPath: false))")
    default: "\"\(name.asName)\" could not be resolved: \(String(cString: gai_strerror(resolver)))"
    }
  }

  private static func advice(_ code: Int32, isPath: Bool) -> String {
    switch code {
    case EADDRINUSE where isPath: "another socket, or a file, has this path; stop its process, or choose another path"
    case EADDRNOTAVAIL where isPath: "this machine does not have this address"
    case ECONNREFUSED where isPath: "nothing listens at this path; check whether the server runs"
    case EADDRINUSE: "another socket has this address; stop its process, or choose another port (0: any that is free)"
    case EADDRNOTAVAIL: "this machine does not have this address, or has no port left for it"
    case EACCES, EPERM: "this user may not do that; ports below 1024 need CAP_NET_BIND_SERVICE, paths need permission"
    case ECONNREFUSED: "nothing listens there; check the address, and whether the server runs"
    case ECONNRESET: "the peer has reset the connection; data that it has not acknowledged may be lost"
    case EPIPE: "the peer has closed the connection, or this side has called shutdownWrite()"
    case ETIMEDOUT: "the peer does not answer; check the network"
    case ENETUNREACH, EHOSTUNREACH: "no route leads there; check the network"
    case EMFILE: "the process has no descriptor left; raise RLIMIT_NOFILE (ulimit -n), or close connections"
    case ENFILE: "the system has no descriptor left; raise the sysctl fs.file-max"
    case ENOBUFS, ENOMEM: "the system has no memory left for sockets; close connections"
    case ENOSPC: "this user watches as many descriptors as it may; raise the sysctl fs.epoll.max_user_watches"
    case EAFNOSUPPORT: "this machine does not have this kind of address; use another one"
    case EMSGSIZE: "a datagram has at most 65,507 bytes over IPv4; send less at once"
    case ENOENT: "there is no such socket, or no such directory; check the path, and whether the server runs"
    case ENAMETOOLONG: "use a shorter path"
    case EINVAL, EBADF, ENOTSOCK, ESPIPE, ESOCKTNOSUPPORT:
      "the descriptor, or an argument, does not fit; check what was passed"
    case ENOTCONN: "the socket has no connection, or its peer has closed it"
    default: ""
    }
  }
}
