import Coroutine
import CoroutineNet
import CoroutineTesting
import Testing

/// The code about hosts in the article TestingConcurrentCode, run.
@Suite("Hosts in a test with the trait", .timeLimit(.minutes(10)))
struct NetworkSnippets {
  @Test(.simulated(.random(seeds: 50))) func `a client finds a server by its name`() throws {
    let world = try #require(World.current)
    world.network.host("site.example") {
      try Server.run(.any(port: 80)) { connection in try connection.write("hello\n".utf8) }
    }
    try world.settle()  // until the server listens
    let connection = try Connection.connect(host: "site.example", port: 80)
    var reader = BufferedReader(connection)
    let line = try reader.readLine()
    #expect(line == "hello")
  }
}
