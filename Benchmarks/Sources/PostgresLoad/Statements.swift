import Coroutine
import CoroutinePostgres
import Harness

/// The statements of pgbench's scripts `select-only` and `tpcb-like`.
struct Statements: Sendable {
  private let db: PostgresPool
  private let clients: Int
  private let scale: Int

  init(_ address: String, clients: Int, connections: Int) throws {
    var options = PostgresPool.Options()
    options.connections = 0...connections
    options.pipelines = connections
    db = try PostgresPool(address, options: options)
    scale = try db.first("select count(*) from pgbench_branches", as: Int.self) ?? 0
    expect(scale > 0, "pgbench has filled the database")
    self.clients = clients
  }

  private func number(in range: ClosedRange<Int>, _ numbers: inout Numbers) -> Int {
    Int.random(in: range, using: &numbers)
  }

  private func account(_ numbers: inout Numbers) -> Int { number(in: 1...100_000 * scale, &numbers) }

  func select(_ limit: Limit) throws {
    try load(clients: clients, limit) { client, loop in
      var numbers = Numbers(seed: client)
      try db.withConnection { connection in try loop { try selectOne(connection, account(&numbers)) } }
    }
  }

  func selectByPool(_ limit: Limit) throws {
    try load(clients: clients, limit) { client, loop in
      var numbers = Numbers(seed: client)
      try loop { try selectOne(db, account(&numbers)) }
    }
  }

  func selectByPipeline(_ limit: Limit) throws {
    try load(clients: clients, limit) { client, loop in
      var numbers = Numbers(seed: client)
      try loop { try selectOne(db.pipeline, account(&numbers)) }
    }
  }

  private func selectOne(_ session: some PostgresSession, _ account: Int) throws {
    let balance = try session.first("select abalance from pgbench_accounts where aid = \(account)", as: Int.self)
    expect(balance != nil, "account \(account) is there")
  }

  func transfer(_ limit: Limit) throws {
    try load(clients: clients, limit) { client, loop in
      var numbers = Numbers(seed: client)
      try db.withConnection { connection in
        try loop {
          let (a, b, t) = (account(&numbers), number(in: 1...scale, &numbers), number(in: 1...10 * scale, &numbers))
          let change = Int.random(in: -5_000...5_000, using: &numbers)
          try connection.transaction { c in
            try c.run("update pgbench_accounts set abalance = abalance + \(change) where aid = \(a)")
            _ = try c.first("select abalance from pgbench_accounts where aid = \(a)", as: Int.self)
            try c.run("update pgbench_tellers set tbalance = tbalance + \(change) where tid = \(t)")
            try c.run("update pgbench_branches set bbalance = bbalance + \(change) where bid = \(b)")
            try c.run(
              """
              insert into pgbench_history (tid, bid, aid, delta, mtime)
              values (\(t), \(b), \(a), \(change), current_timestamp)
              """
            )
          }
        }
      }
    }
  }
}
