"""Bearer tokens of external issuers: JSON Web Tokens of the issuers in an AuthenticationConfiguration."""
