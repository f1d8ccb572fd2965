#if Demo
/// Those who have an account on the built-in server.
///
/// The passwords are no secret: --help shows them.
struct Member: Sendable {
  var account: Account
  var name: String
  var title: String
  var portrait: Portrait

  static let all = [
    Member(
      account: Account(account: "ada", password: "lovelace"),
      name: "Ada Lovelace",
      title: "first programmer",
      portrait: Portrait(
        skin: 0xf2c9a5,
        hair: 0x3b2418,
        clothes: 0x2f4f8f,
        sky: (0x9ad0e8, 0xf6e7c8),
        hairstyle: .bun
      )
    ),
    Member(
      account: Account(account: "grace", password: "hopper"),
      name: "Grace Hopper",
      title: "rear admiral, compilers",
      portrait: Portrait(
        skin: 0xe8b98f,
        hair: 0xb9b4ad,
        clothes: 0x1d2a44,
        sky: (0xf3c58b, 0xfbeed2),
        hairstyle: .bob
      )
    ),
    Member(
      account: Account(account: "alan", password: "turing"),
      name: "Alan Turing",
      title: "machines that think",
      portrait: Portrait(
        skin: 0xeec19f,
        hair: 0x2a1d14,
        clothes: 0x5d6b3a,
        sky: (0xa9c7b0, 0xeef2dc),
        hairstyle: .parted
      )
    ),
  ]

  static func named(_ account: String) -> Member? {
    all.first { $0.account.account == account }
  }
}
#endif
