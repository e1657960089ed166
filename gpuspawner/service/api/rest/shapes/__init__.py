"""The answers of the REST API as models, by what they tell of."""
