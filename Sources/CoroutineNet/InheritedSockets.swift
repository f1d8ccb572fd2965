internal import CLinux
import Coroutine
import Glibc
import Synchronization

// Socket activation (sd_listen_fds(3)): a service manager binds the sockets, and passes them to the process that it
// starts, as the descriptors from 3 on.
//
//   LISTEN_PID       the process that they are meant for; a child of it that inherits the variables is not meant
//   LISTEN_FDS       how many there are
//   LISTEN_FDNAMES   their names, with colons between; "unknown" where it has none
//
// Each kind of socket is taken once: what was adopted must not be adopted again. A call that throws has taken nothing.

final class InheritedSockets: Sendable {
  /// Those of this process.
  static let shared = InheritedSockets(from: 3) { name in getenv(name).map { String(cString: $0) } }

  struct Passed {
    let name: String
    let number: Int32
  }

  private let first: Int32
  private let variable: @Sendable (String) -> String?
  private let listenersAreTaken = Atomic<Bool>(false)
  private let datagramsAreTaken = Atomic<Bool>(false)

  /// Tests have their own variables and numbers.
  init(from first: Int32, _ variable: @escaping @Sendable (String) -> String?) {
    self.first = first
    self.variable = variable
  }

  /// Returns what the variables describe; an empty array if they are meant for another process, or are not set.
  func passed() throws(NetError) -> [Passed] {
    guard let pid = variable("LISTEN_PID"), let fds = variable("LISTEN_FDS") else { return [] }
    guard let process = Self.number(pid), process > 0 else { throw Self.wrong("LISTEN_PID", pid) }
    guard process == getpid() else { return [] }
    guard let count = Self.number(fds), count < Int(Int32.max - first) else { throw Self.wrong("LISTEN_FDS", fds) }
    // A count that no process can have would build a long list of descriptors that are not open.
    if count > 0, fcntl(first + Int32(count) - 1, F_GETFD) < 0 {
      throw NetError(code: errno, "adopting descriptor \(Int(first) + count - 1) of LISTEN_FDS", nil)
    }
    let names = variable("LISTEN_FDNAMES")?.split(separator: ":", omittingEmptySubsequences: false) ?? []
    return (0..<count).map { index in
      let name = index < names.count ? String(names[index]) : ""
      return Passed(name: name.isEmpty ? "unknown" : name, number: first + Int32(index))
    }
  }

  /// A decimal number without a sign.
  private static func number(_ text: String) -> Int? {
    text.utf8.allSatisfy { (UInt8(ascii: "0")...UInt8(ascii: "9")).contains($0) } ? Int(text) : nil
  }

  private static func wrong(_ variable: String, _ text: String) -> NetError {
    NetError(code: EINVAL, "reading \"\(text.asName)\" as \(variable)", nil)
  }

  /// Takes all passed listeners, once.
  func listeners() throws(NetError) -> [(name: String, listener: Listener)] {
    try take(.listener, listenersAreTaken) { name, socket, candidate in
      (name: name, listener: Listener(socket, nil, candidate.local))
    }
  }

  /// Takes all passed datagram sockets, once.
  func datagramSockets() throws(NetError) -> [(name: String, socket: DatagramSocket)] {
    try take(.datagrams, datagramsAreTaken) { name, socket, candidate in
      DatagramSocket.reportTargets(socket.number, candidate.family)
      return (name: name, socket: DatagramSocket(socket, nil, candidate.local, candidate.family))
    }
  }

  private func take<Named>(
    _ role: Adoption.Role,
    _ isTaken: borrowing Atomic<Bool>,
    _ make: (String, WatchedDescriptor, Adoption.Candidate) -> Named
  ) throws(NetError) -> [Named] {
    if isTaken.exchange(true, ordering: .acquiringAndReleasing) { return [] }
    do {
      var candidates: [(String, Adoption.Candidate)] = []
      for passed in try passed() {
        let itsRole = try Adoption.role(of: passed.number)
        // A unit with "Accept=yes" passes one connection, for Connection.adopting.
        if itsRole == role || itsRole == .connection {
          candidates.append((passed.name, try Adoption.check(passed.number, for: role)))
        }
      }
      var taken: [Named] = []
      for (name, candidate) in candidates { taken.append(make(name, try Adoption.own(candidate), candidate)) }
      return taken
    } catch {
      isTaken.store(false, ordering: .releasing)
      throw error
    }
  }
}

extension Listener {
  /// Takes over the listeners that systemd has bound for this process (LISTEN_FDS, LISTEN_PID, LISTEN_FDNAMES).
  ///
  /// Never suspends; any thread. The first call takes them, in the order of the unit; a later one returns an empty
  /// array. So does the first, if the variables are not set, or are meant for another process. Datagram sockets that
  /// were passed as well are for ``DatagramSocket/inherited()``. A name is that of FileDescriptorName in the unit. As
  /// after ``adopting(_:)``, the listeners own their descriptors, and the file of a Unix socket stays.
  ///
  /// - Throws: ``NetError``: `EINVAL` if LISTEN_PID or LISTEN_FDS is no number, or if a descriptor is a connection;
  ///   `EBADF` if a descriptor is not open, `ENOTSOCK` if one is no socket; the other errors of ``adopting(_:)``.
  ///   Nothing is taken then.
  public static func inherited() throws -> [(name: String, listener: Listener)] {
    try InheritedSockets.shared.listeners()
  }
}

extension DatagramSocket {
  /// Takes over the datagram sockets that systemd has bound for this process, as ``Listener/inherited()`` does
  /// listeners.
  ///
  /// - Throws: The errors of ``Listener/inherited()``.
  public static func inherited() throws -> [(name: String, socket: DatagramSocket)] {
    try InheritedSockets.shared.datagramSockets()
  }
}
