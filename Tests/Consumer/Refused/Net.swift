// The same as Verbs.swift, of the product CoroutineNet.
import Coroutine
import CoroutineNet

func connections(_ connection: Connection, _ address: SocketAddress, _ file: Int32) async throws {
  _ = try Connection.connect(to: address)  // refused
  _ = try Connection.connect(host: "localhost", port: 1)  // refused
  _ = try connection.read(into: .init(start: nil, count: 0))  // refused
  _ = try connection.read(upTo: 1)  // refused
  try connection.write([1])  // refused
  try connection.write(UnsafeRawBufferPointer(start: nil, count: 0))  // refused
  try connection.write([[1], [2]])  // refused
  try connection.sendFile(file, offset: 0, count: 1)  // refused
}

func readers(_ connection: Connection) async throws {
  var reader = BufferedReader(connection)
  _ = try reader.read(exactly: 1)  // refused
  _ = try reader.read(until: 0, max: 1)  // refused
  _ = try reader.readLine()  // refused
  _ = try reader.readInteger(UInt8.self)  // refused
  _ = try reader.readAll(max: 1)  // refused
}

func servers(_ listener: Listener, _ socket: DatagramSocket, _ address: SocketAddress) async throws {
  _ = try listener.accept()  // refused
  try Server.run(address) { _ in }  // refused
  _ = try SocketAddress.resolve("localhost", port: 1)  // refused
  _ = try socket.receive(into: .init(start: nil, count: 0))  // refused
  try socket.send([1], to: address)  // refused
}

/// What does not wait may be called anywhere, and in a coroutine everything may.
func accepted(_ address: SocketAddress) async throws {
  let listener = try Listener.bind(address)
  listener.close()
  let (one, other) = try Connection.pair()
  try await co_launch {
    try one.write([1])
    _ = try other.read(upTo: 1)
  }.value
}
