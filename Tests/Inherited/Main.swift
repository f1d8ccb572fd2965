import Coroutine
import CoroutineNet
import Glibc

// A service that systemd, or systemd-socket-activate, starts with its sockets. It answers one peer at each of them,
// with the socket's name and address and what the peer has sent, and ends. Its status is 1 if it was passed none.
// InheritedTests starts it: a process of the test library has other descriptors from 3 on.

let status = try await co_launch { () -> Int32 in
  let listeners = try Listener.inherited()
  let sockets = try DatagramSocket.inherited()
  try co_scope { scope in
    for (name, listener) in listeners {
      scope.launch {
        let connection = try listener.accept()
        var reader = BufferedReader(connection)
        let line = try reader.readLine() ?? ""
        try connection.write("\(name) \(listener.address) \(line)\n".utf8)
        try connection.closeLingering()
      }
    }
    for (name, socket) in sockets {
      scope.launch {
        try withUnsafeTemporaryAllocation(byteCount: 512, alignment: 1) { buffer in
          let (count, from, to) = try socket.receiveMessage(into: UnsafeMutableRawBufferPointer(buffer))
          let text = String(decoding: buffer.prefix(count), as: UTF8.self)
          try socket.send(Array("\(name) \(to) \(text)\n".utf8), to: from)
        }
      }
    }
  }
  let isTaken = try Listener.inherited().isEmpty && DatagramSocket.inherited().isEmpty
  return isTaken && !(listeners.isEmpty && sockets.isEmpty) ? 0 : 1
}.value
exit(status)
