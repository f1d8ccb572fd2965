#if Demo
import Testing

@testable import CoroutineDemo

@Suite struct `Parts of orders` {
  private var whole: OrdersProof {
    OrdersProof(
      placed: 1_200,
      orders: 1_200,
      mails: 1_200,
      mailedOrders: 1_200,
      sent: 1_210,
      sentMails: 1_200,
      pieces: 1_200
    )
  }

  @Test func `a proof holds if every effect is there once`() {
    #expect(whole.holds)
    let text = whole.text(OrdersPlan(), .seconds(12))
    #expect(text.contains("\n  mails              1,200  one for each order\n"), "\(text)")
    #expect(text.contains("\n  sent               1,210  10 of them again, "), "\(text)")
    #expect(text.hasSuffix("\nProven: effects = orders.\n"))
  }

  @Test func `a proof fails for each thing that is missing, doubled or shared`() {
    let faults: [(String, (inout OrdersProof) -> Void)] = [
      ("an order that is gone", { $0.orders -= 1 }), ("a mail that is gone", { $0.mails -= 1 }),
      ("a mail twice", { $0.mails += 1 }), ("a mail twice, another gone", { $0.mailedOrders -= 1 }),
      ("a mail that was not sent", { $0.sentMails -= 1 }), ("a piece too many", { $0.pieces += 1 }),
      ("a balance", { $0.wrongBalances = 1 }), ("two holders", { $0.sharedFences = 1 }),
      ("a holder from before", { $0.lateReports = 1 }),
    ]
    for (name, change) in faults {
      var proof = whole
      change(&proof)
      #expect(!proof.holds, "\(name)")
      #expect(proof.text(OrdersPlan(), .zero).hasSuffix("\nNot proven: effects are not orders.\n"), "\(name)")
    }
  }

  @Test func `kills are as many as asked for, each after an order that comes in`() {
    let plan = OrdersPlan(orders: 10, kills: 10)
    let kills = plan.killsAfterOrders()
    #expect(kills.values.reduce(0, +) == 10)
    #expect(kills.keys.allSatisfy { (0..<10).contains($0) })
    #expect(plan.pause == .milliseconds(50))
  }

  @Test func `the board says who holds the lease, and fits into the terminal`() {
    var board = OrdersBoard(plan: OrdersPlan(orders: 100, kills: 5))
    #expect(board.lines(columns: 80).last == "  nightly  nobody")
    board.numbers = OrdersNumbers(orders: 50, mails: 25, retries: 3, holder: "worker 2, process 17", fence: 1_234)
    board.kills = 1
    board.processes = [16, 17]
    let lines = board.lines(columns: 80)
    #expect(lines[0] == "  orders   ━━━━━━━━━━━━━━━───────────────  50 of 100")
    #expect(lines[4] == "  workers  1: 16  2: 17")
    #expect(lines[5] == "  nightly  worker 2, process 17 (fence 1234)")
    #expect(board.lines(columns: 20).allSatisfy { $0.columns <= 20 })
    #expect(
      board.line == "50 of 100 orders, 25 mails, 3 retries, 1 kills, nightly: worker 2, process 17 (fence 1234)"
    )
  }
}
#endif
