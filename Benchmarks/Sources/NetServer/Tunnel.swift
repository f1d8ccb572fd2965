import Coroutine
import CoroutineNet

/// A connection that is copied to another one: its first two bytes are the number of a port of loopback.
enum Tunnel {
  static func run(_ client: Connection) throws {
    // A reader reads no more than its capacity ahead.
    var reader = BufferedReader(client, capacity: 2)
    let server = try Connection.connect(to: .loopback(port: try reader.readInteger(UInt16.self)))
    defer { server.close() }
    try co_copy(client, server, idle: .seconds(60))
  }
}
