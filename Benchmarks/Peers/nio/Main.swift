import Harness
import NIOCore
import NIOPosix

// The workloads of promises in the futures of SwiftNIO, all on one event loop, which is how they are fastest:
// "nio/<row> <TAB> best <TAB> median". Built and run by Benchmarks/run.

@main
struct NIOPeer {
  static func main() throws {
    let options = Options.parse()
    var suite = Suite(options, owner: "nio")
    let group = MultiThreadedEventLoopGroup(numberOfThreads: 1)
    let loop = group.next()

    suite.row("promise_settle", 2_000_000) { count in
      let settled = try loop.submit {
        var settled = 0
        for index in 0..<count {
          let promise = loop.makePromise(of: Int.self)
          promise.succeed(index)
          blackHole(promise)
          settled += 1
        }
        return settled
      }
      .wait()
      expect(settled, equals: count, "promises settled")
    }

    suite.row("promise_then", 1_000_000) { count in
      let sum = try loop.submit {
        var sum = 0
        for _ in 0..<(count / 10) {
          let head = loop.makePromise(of: Int.self)
          var tail = head.futureResult
          for _ in 0..<10 { tail = tail.map { $0 &+ 1 } }
          tail.assumeIsolated().whenSuccess { sum &+= $0 }
          head.succeed(0)
        }
        return sum
      }
      .wait()
      expect(sum, equals: count / 10 * 10, "links run")
    }

    suite.row("promise_all_10k", 1_000_000) { count in
      let rounds = max(1, count / 10_000)
      let sum = try loop.submit {
        var sum = 0
        for _ in 0..<rounds {
          let members = (0..<(count / rounds)).map { _ in loop.makePromise(of: Int.self) }
          EventLoopFuture.whenAllSucceed(members.map(\.futureResult), on: loop).assumeIsolated()
            .whenSuccess { sum &+= $0.reduce(0, +) }
          for member in members { member.succeed(1) }
        }
        return sum
      }
      .wait()
      expect(sum, equals: count / rounds * rounds, "members")
    }

    try Runner(options).run(suite, heading: Machine.description)
    try group.syncShutdownGracefully()
  }
}
